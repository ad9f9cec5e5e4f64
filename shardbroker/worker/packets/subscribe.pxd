"""SUBSCRIBE and UNSUBSCRIBE (MQTT 3.1.1 §3.8 and §3.10, 5.0 likewise), and subscriptions made for a client.

    on_subscribe -> go_on_subscribing  (again in each turn, until all filters are done)
                    -> Router.subacks -> Router.commit -> send_suback -> retained messages
    on_unsubscribe -> go_on_unsubscribing -> UNSUBACK

SUBACK follows the commit: whatever is published after a SUBACK reaches the subscription.
"""
from shardbroker.mqtt.packets cimport Subscribe, Unsubscribe
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.router cimport Router

cdef int on_subscribe(Channel channel, Subscribe packet) except -1
cdef int on_unsubscribe(Channel channel, Unsubscribe packet) except -1
# Filters of a SUBSCRIBE or UNSUBSCRIBE as far as the budget allows. The packet after it is not read before all filters are done.
cdef int go_on_with_filters(Channel channel) except -1
# auto_subscribe.topics, as a SUBSCRIBE without packet id and without SUBACK.
cdef int auto_subscribe(Channel channel) except -1
# What subscriptions get that subscribe_one() has put into `replays`.
cdef int start_replays(Router router, Session session, list subscriptions) except -1
cdef enum:
    FILTER_WAITS = 256                     # in place of a SUBACK code: other nodes are asked, and the filter is to be repeated

# One filter in the broker's terms, below the mount point if there is one; returns its SUBACK code or FILTER_WAITS. `offset`: where a
# stream begins. Appends to `subscribed` and, if retained messages are due, to `replays`. Raises MqttError for a wrong filter.
cdef int subscribe_one(
    Channel channel, bytes wire_filter, int options, object identifier, bytes offset, list subscribed, list replays) except -1
