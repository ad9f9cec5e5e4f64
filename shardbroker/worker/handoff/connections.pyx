"""One connection as plain values, and back; see connections.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.mqtt.buffer cimport Buffer
from shardbroker.transport.layers cimport Layers
from shardbroker.worker.authorization cimport Authorization
from shardbroker.worker.channel cimport CLOSING, CONNECTED, WAIT_CONNECT, TopicAliases
from shardbroker.worker.connection cimport STOP_OUTPUT, STOP_RATE
from shardbroker.worker.rates cimport Rates, SharedRates
from shardbroker.worker.router cimport Router
from shm.address cimport PeerAddress
from shm.counters cimport CONNECTIONS_COUNT
from shm.posix cimport EPOLLIN

from shardbroker.worker.login import Login


cdef str reason_to_wait(Connection connection):
    if connection.state == CLOSING:
        return None
    if connection.claiming:
        return None                        # see ClusterSessions.reason_to_wait
    if connection.waiting:
        return "a request to integrations" if connection.state == CONNECTED else "a login"
    if connection.subscribing is not None or connection.suback_waits:
        return "a subscription"
    if connection.guard is not None and connection.guard.sent + connection.out.pending() != connection.guard.cleared:
        return "the disk"                  # the successor sends all output that it gets
    return None


cdef bint stays_behind(Connection connection) noexcept:
    return connection.fd < 0 or connection.state == CLOSING or (connection.state != CONNECTED and (
        connection.waiting or connection.state != WAIT_CONNECT))


cdef dict to_values(Connection connection):
    cdef dict values = {
        "peer": PyBytes_FromStringAndSize(<const char*>&connection.peer, sizeof(PeerAddress)), "listener": connection.listener,
        "number": connection.listener_number, "id": connection.wanted_id, "due": connection.due_ms,
    }
    if connection.extra is not None:
        values["extra"] = connection.extra
    if connection.layers is not None:
        values["layers"] = connection.layers.image()
    if connection.rest_size:
        values["rest"] = PyBytes_FromStringAndSize(<const char*>connection.rest, connection.rest_size)
    if connection.rates is not None:
        values["rates"] = [
            connection.rates.messages_in, connection.rates.bytes_in, connection.rates.at_ms, connection.rates.stopped_until_ms]
    if connection.stops & (STOP_OUTPUT | STOP_RATE):
        values["stops"] = connection.stops & (STOP_OUTPUT | STOP_RATE)
    if connection.out.pending():
        values["out"] = bytes(connection.out)
    if connection.state != CONNECTED:
        values["announced"] = connection.announced_version
        return values
    values["session"] = connection.session.key
    values["client"] = [
        connection.version, connection.clean_start, connection.problem_information, connection.keepalive_s, connection.max_packet,
        connection.receive_maximum, connection.alias_maximum, connection.last_packet_ms, connection.connected_ms]
    if connection.username is not None:
        values["username"] = connection.username
    if connection.aliases_in is not None:
        values["aliases_in"] = [connection.aliases_in.topics, connection.aliases_in.size]
    if connection.aliases_out:
        values["aliases_out"] = connection.aliases_out
    if connection.access is not None:
        values["access"] = access_values(connection)
    return values


cdef list access_values(Connection connection):
    cdef Authorization access = connection.access
    client = access.client
    return [
        [client.client_id, client.username, client.peerhost, client.peerport, client.listener, client.version, client.cert_common_name,
         client.cert_subject],
        access.client_id, access.superuser, access.own_acl, access.ends_at_ms, access.subscriptions,
        None if access.login is None else access.login.kept_method(), connection.acl_cache is not None,
    ]


cdef Connection from_values(Worker worker, dict values, int fd, Session session):
    cdef Router router = worker.router
    cdef Connection connection
    cdef SharedRates shared
    cdef bytes peer = values["peer"], rest = values.get("rest"), out = values.get("out")
    cdef dict extra = values.get("extra")
    if len(peer) != sizeof(PeerAddress):
        raise ValueError(f"{len(peer)} bytes, an address has {sizeof(PeerAddress)}")
    if extra is None or "mountpoint" not in extra:
        connection = Connection.__new__(Connection)
    else:
        connection = worker.intake.mounted_connection(extra["mountpoint"])
    connection.context = router
    connection.router = router
    connection.turn = worker.turn
    connection.out = Buffer.__new__(Buffer)
    memcpy(&connection.peer, PyBytes_AS_STRING(peer), sizeof(PeerAddress))
    connection.listener = values["listener"]
    connection.listener_number = values["number"]
    connection.wanted_id = values["id"]
    connection.extra = extra
    connection.interest = EPOLLIN
    if extra is not None and "rates" in extra:
        connection.rates = Rates(*extra["rates"])
    if "layers" in values:
        connection.layers = Layers.from_image(values["layers"])
    shared = worker.intake.quotas.of(connection.listener_number, None if extra is None else extra.get("limiter"))
    if shared is not None:
        if connection.rates is None:
            connection.rates = Rates(0.0, 0.0)
        connection.rates.shared = shared
        connection.limited = True
    if connection.rates is not None and "rates" in values:
        (connection.rates.messages_in, connection.rates.bytes_in, connection.rates.at_ms,
         connection.rates.stopped_until_ms) = values["rates"]
    if rest is not None:
        connection.keep_rest(<const uint8_t*>PyBytes_AS_STRING(rest), PyBytes_GET_SIZE(rest))
    if out is not None:
        connection.out.append(PyBytes_AS_STRING(out), PyBytes_GET_SIZE(out))
    if session is not None:
        take_client(connection, values, session)
    else:
        connection.announced_version = values["announced"]
    worker.turn.listen_to(fd, EPOLLIN)
    connection.fd = fd                     # from here on the connection closes it
    worker.turn.make_place(fd)
    worker.turn.by_fd[fd] = connection
    if values["due"]:
        router.timers.arm(connection, values["due"])
    continue_work(connection, values.get("stops", 0))
    return connection


cdef int take_client(Connection connection, dict values, Session session) except -1:
    connection.state = CONNECTED
    (connection.version, connection.clean_start, connection.problem_information, connection.keepalive_s, connection.max_packet,
     connection.receive_maximum, connection.alias_maximum, connection.last_packet_ms, connection.connected_ms) = values["client"]
    connection.username = values.get("username")
    connection.aliases_out = values.get("aliases_out")
    if "aliases_in" in values:
        connection.aliases_in = TopicAliases.__new__(TopicAliases)
        connection.aliases_in.topics, connection.aliases_in.size = values["aliases_in"]
    connection.session = session
    session.link = connection
    connection.context.gauge(CONNECTIONS_COUNT, 1)
    if "access" in values:
        take_access(connection, values["access"])
    if connection.mounted:
        name = connection.username if connection.access is None or connection.access.client.username is None \
            else connection.access.client.username.encode()
        if not connection.mount(None if name is None else name.decode()):
            raise ValueError("a client without a place below its mount point")
    return 0


cdef int take_access(Connection connection, list values) except -1:
    cdef Authorization access
    client, client_id, superuser, own_acl, ends_at_ms, subscriptions, method, is_checked = values
    access = connection.router.access_type(connection, client_id)
    access.client = type(access.client)(
        client[0], client[1], None, client[2], client[3], client[4], client[5], client[6], client[7])
    access.superuser, access.own_acl, access.ends_at_ms, access.subscriptions = superuser, own_acl, ends_at_ms, subscriptions
    if method is not None:
        access.login = Login.after_connack(access, method)
    if is_checked:
        connection.acl_cache = AclCache(connection.router.acl.cache.max_size)
    connection.access = access
    return 0


cdef int continue_work(Connection connection, uint8_t stops) except -1:
    """What waits is dealt with in the first pass: output, and packets that have arrived."""
    if stops & STOP_RATE and connection.rates is not None:
        connection.paused = True
        connection.stop_reading(STOP_RATE)
        connection.turn.limited.append(connection)
    if stops & STOP_OUTPUT:
        connection.stop_reading(STOP_OUTPUT)
    if connection.rest_size and not connection.stops:
        connection.busy = True
        connection.turn.busy.append(connection)
    if connection.out.pending() or connection.answering():
        connection.touch()
    return 0
