"""A connection by a listener with a mount point: its client lives below a prefix, and does not see it.

    client                     broker                                        prefix "tenants/ada/"
    PUBLISH t            ->    tenants/ada/t
    SUBSCRIBE a/#        ->    tenants/ada/a/#
    SUBSCRIBE $share/g/a ->    $share/g/tenants/ada/a
    PUBLISH $delayed/5/t ->    $delayed/5/tenants/ada/t
    PUBLISH t            <-    tenants/ada/t

Rules of access control see topics as the client names them. A class of its own: other connections have no cost.
"""
from shardbroker.worker.connection cimport Connection


cdef class MountedConnection(Connection):
    cdef object template                   # shardbroker.access.placeholders.Template
    cdef bytes prefix                      # None until it is known who this is
