"""The choice of the member of a shared group that gets a message (MQTT 5.0 §4.8.2): the seven strategies of EMQX.

The publisher's worker chooses among the members on all workers. The route table lists them in the same order for all workers.

| strategy | choice |
|---|---|
| random | any member |
| round_robin | each publisher cycles through the members; a node-wide counter gives its first turn, so that many publishers of one message each are spread evenly too |
| round_robin_per_group | one node-wide counter per group and filter |
| sticky | the publisher's last member as long as it is subscribed |
| local | a random member on the publisher's worker, else a random one |
| hash_topic | by the topic: all messages of a topic go to one member |
| hash_clientid | by the publisher's client id |
"""

from random import Random
from zlib import crc32

from libc.stdint cimport uint64_t

__all__ = ["STRATEGIES", "GroupPicker"]

STRATEGIES = ("random", "round_robin", "round_robin_per_group", "sticky", "local", "hash_topic", "hash_clientid")


cdef class GroupPicker:
    """Picks members by one strategy.

    `next_turn(hash) -> int` is the node-wide counter, `own_destination` this worker's destination.
    """

    def __init__(self, str strategy, object next_turn, long own_destination, object seed=None):
        if strategy not in STRATEGIES:
            raise ValueError(f"shared subscription strategy {strategy!r}: allowed are {', '.join(STRATEGIES)}")
        self.strategy = strategy
        self.next_turn = next_turn
        self.own_destination = own_destination
        self.random = Random(seed)

    cdef tuple pick(self, tuple group, bytes topic, bytes publisher, dict memory):
        """Returns one of group[2], (destination, member). `memory` belongs to the publisher: its turns and sticky members."""
        cdef tuple members = <tuple>group[2]
        cdef uint64_t count = <uint64_t>len(members)
        if count == 1:
            return <tuple>members[0]
        cdef tuple key = (group[0], group[1])
        strategy = self.strategy
        if strategy == "round_robin":
            turn = memory.get(key)
            turn = self.turn_of(key) if turn is None else turn + 1
            memory[key] = turn
            return <tuple>members[turn % count]
        if strategy == "round_robin_per_group":
            return <tuple>members[self.turn_of(key) % count]
        if strategy == "hash_topic":
            return <tuple>members[crc32(topic) % count]
        if strategy == "hash_clientid":
            return <tuple>members[crc32(publisher) % count]
        if strategy == "sticky":
            chosen = memory.get(key)
            if chosen not in members:
                chosen = memory[key] = members[self.random.randrange(count)]
            return <tuple>chosen
        if strategy == "local":
            local = [member for member in members if member[0] == self.own_destination]
            if local:
                return <tuple>local[self.random.randrange(len(local))]
        return <tuple>members[self.random.randrange(count)]

    cdef object turn_of(self, tuple key):
        return self.next_turn(crc32(key[1], crc32(key[0])))
