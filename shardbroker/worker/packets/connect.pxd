r"""CONNECT and CONNACK, AUTH and DISCONNECT (MQTT 3.1.1 §3.1, §3.2 and §3.14; 5.0 likewise and §3.15).

    on_connect -> accept                                  without authenticators, rules and bans
              \-> Authorization.start -> ... -> accept           else; reading is suspended until integrations has answered
"""
from shardbroker.mqtt.packets cimport Connect, Disconnect
from shardbroker.worker.channel cimport Channel

cdef int on_connect(Channel channel, Connect packet) except -1
# Authentication and rules have allowed the client: it is admitted, in a cluster once the node has the right to its session.
cdef int accept(Channel channel, Connect packet, bytes client_id) except -1
# Opens the session and answers with CONNACK.
cdef int admit(Channel channel, Connect packet, bytes client_id) except -1
cdef int on_auth(Channel channel, object packet) except -1
cdef int on_disconnect(Channel channel, Disconnect packet) except -1
