"""Retained messages that a worker has accepted and not stored yet.

    Router.publish() -> retain()   a change of this pass; at level `machine` the journal records it, too
    Router.commit()  -> commit()   all changes in one batch; one that the disk refuses is kept, with durability.on_disk_error = hold
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.context cimport WorkerContext
from shardbroker.worker.disk cimport DiskWatch
from shardbroker.worker.outlets cimport Outlets


@final
cdef class RetainedChanges:
    cdef WorkerContext context
    cdef readonly object store             # shardbroker.stores.retained.RetainedStore or its like; None without
    cdef object settings                   # section `retainer`
    cdef Outlets outlets
    cdef DiskWatch disk                    # of the journal; None: there is no journal
    cdef list changes                      # RetainedMessage, or the topic of a deletion, in order
    cdef uint64_t retry_ms                 # the disk refused the last batch; when it is tried again. 0: it did not
    cdef uint64_t waiting                  # bytes of the changes since then

    # Adds a retained message or its deletion; commit() stores it.
    cdef int retain(self, Publication publication) except -1
    cdef int commit(self) except -1
    # Whether changes wait for a disk that has refused them.
    cdef bint is_behind(self) noexcept
    # Sets `disk_full` of the context by the stage of the disk, and by the changes that wait for it.
    cdef int check_disk(self) except -1
    # The disk refuses the changes. Whether they are kept until it takes them; they are dropped otherwise.
    cdef bint keeps_refused(self, int error) except -1
