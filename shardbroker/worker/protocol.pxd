r"""Bytes of a client to packets, and each packet to the module of its family.

    feed -> packets/publish.on_publish          PUBLISH
        \-> packets/acknowledge.on_ack          PUBACK, PUBREC, PUBREL, PUBCOMP
        \-> handle_rare -> packets/connect, packets/subscribe, PINGREQ
"""
from libc.stdint cimport uint8_t

from shardbroker.worker.channel cimport Channel

# Handles whole packets and returns the bytes used. Fewer than `size`: the last packet is incomplete, the channel is parked, waiting or
# closing, or context.budget is used up. Errors of the client and of the broker end the connection; none is raised.
cdef size_t feed(Channel channel, const uint8_t* data, size_t size) except? 0
