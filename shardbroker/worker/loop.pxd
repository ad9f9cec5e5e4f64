"""The event loop of a worker: one thread, one core, level-triggered epoll.

A pass: wait -> read sockets, hand-overs and rings -> timers -> commit (routes, retained, SUBACK) -> rings -> flush sockets.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from acceptor.handover cimport Handover
from shardbroker.journal.writer cimport Writer
from shardbroker.mqtt.layers cimport Layers
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.topic_cache cimport TopicEntry
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel
from shardbroker.worker.disk cimport DiskWatch
from shardbroker.worker.gate cimport Gate, Guard
from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.outlets cimport RingOutlets
from shardbroker.mqtt.codec cimport PublishView
from shardbroker.worker.rates cimport Quotas, Rates, SharedRates
from shardbroker.worker.shard cimport Shard
from shm.counters cimport Counters, Histogram, ListenerSockets
from shm.posix cimport epoll_event
from shm.records cimport RecordHeader
from shm.ring cimport Inbox, Ring


cdef enum Stop:                            # why a connection is not read
    STOP_RING = 1                          # a PUBLISH waits for room in a ring
    STOP_OUTPUT = 2                        # it does not take what it has asked for
    STOP_MEMORY = 4                        # memory is short, and it is among those who fill it
    STOP_DISK = 8                          # its session stays, and the disk does not take what happens to it
    STOP_ACCESS = 16                       # a verdict is waited for
    STOP_RATE = 32                         # it has sent more than its listener allows


cdef class Connection(Channel):
    cdef Loop loop
    cdef readonly int fd                   # -1: closed
    cdef uint8_t* rest                     # bytes of an incomplete packet; NULL most of the time
    cdef size_t rest_size, rest_capacity
    cdef uint32_t interest                 # epoll events asked for
    cdef uint8_t dirty                     # in the loop's flush list
    cdef uint8_t busy                      # in the loop's list of those that have bytes or filters left for the next pass
    cdef uint8_t hung                      # out of epoll, since it would report the peer's end again and again
    cdef uint8_t stops                     # Stop flags; read while there are none
    cdef uint8_t lingering                 # all is sent and the write side shut: waiting for the peer's end
    cdef uint8_t ended_by                  # Side
    cdef uint8_t ended_with                # reason code
    cdef uint64_t paused_until_ms          # unless it is told again that this one is greedy
    cdef Rates rates                       # of its listener, None without
    cdef Layers layers                     # TLS, WebSocket; None for plain TCP
    cdef readonly str listener
    cdef Guard guard                       # level `machine`: how far its output may go; else None
    cdef dict extra                        # what the listener knows beyond the address, see acceptor.handover; mostly None

    cdef int on_readable(self) except -1
    cdef int note_extra(self, dict extra) except -1
    cdef int take_received(self, uint8_t* target, size_t got) except -1
    cdef int keep_rate(self, uint64_t messages, uint64_t bytes) except -1
    cdef int slow_down(self, uint64_t wait_ms) except -1
    cdef bint over_quota(self, PublishView* view) except -1
    cdef int take_layered(self, uint8_t* target, size_t got, bint opened) except -1
    cdef int end_layers(self) except -1
    cdef ssize_t transmit(self, size_t size) noexcept
    cdef bint answering(self) noexcept
    cdef int take(self, const uint8_t* data, size_t size) except -1
    cdef int take_rest(self) except -1
    cdef int grow_rest(self, size_t size) except -1
    cdef int after_feed(self, bint more) except -1
    cdef int go_on(self) except -1
    cdef int stop_reading(self, uint8_t why) except -1
    cdef int read_again(self, uint8_t why) except -1
    cdef int hang(self) except -1
    cdef bint must_not_add(self) except -1
    cdef int finish_sending(self) except -1
    cdef size_t feed_counted(self, const uint8_t* data, size_t size) except? 0
    cdef int keep_rest(self, const uint8_t* data, size_t size) except -1
    cdef int flush(self) except -1
    cdef int ack(self, uint8_t first, uint16_t packet_id, uint8_t reason_code, int counter) except -1
    cdef int finish(self) except -1
    cdef void release(self) noexcept
    cdef int want(self, uint32_t interest) except -1


cdef class Loop(Shard):
    cdef readonly object topology
    cdef readonly int number
    cdef public object mounted_connection  # makes the Connection of a client below a mount point, see mounted.pyx
    cdef int epoll
    cdef list by_fd                        # descriptor -> Connection
    cdef list dirty
    cdef list parked                       # connections that wait for room in a ring
    cdef list busy                         # connections whose budget was too small for what they had sent
    cdef int64_t turn_budget               # units for each connection in this pass
    cdef size_t turn_bytes                 # bytes read from each connection in this pass
    cdef uint64_t step_start_us
    cdef bint late                         # more questions are overdue than one step had room for
    cdef MemoryWatch memory
    cdef uint64_t look_at_ms               # when memory is measured next
    cdef list paused                       # connections with STOP_MEMORY
    cdef DiskWatch disk
    cdef list unread                       # connections with STOP_DISK
    cdef list limited                      # connections with STOP_RATE
    cdef Quotas quotas
    cdef uint8_t* buffer                   # what every socket is read into
    cdef Inbox inbox
    cdef RingOutlets rings                 # the router's outlets
    cdef int draining_lane                 # process whose records are being dealt with
    cdef Publication incoming              # of the ring record that is being delivered
    cdef Counters counters_segment
    cdef int64_t clock_offset_ms           # Unix ms - CLOCK_MONOTONIC ms at the start
    cdef ListenerSockets* sockets          # our counts, by listener
    cdef dict handovers                    # descriptor of the worker's end -> True
    cdef public bint draining
    cdef bint trim_due                     # something was done since memory was given back
    cdef uint64_t trim_at_ms
    cdef uint64_t pass_start_us            # CLOCK_MONOTONIC
    cdef Histogram pass_times
    cdef Histogram hop_times
    cdef dict lane_lookups                 # producer -> look-ups of the topic of the record that its lane waits with
    cdef list drained                      # lanes with records taken since the last release: (producer, Ring, Inbox)
    cdef list spent                        # spilled messages that were read: files to be unlinked once they are safe
    cdef bint holding                      # the journal is behind: nothing that promises something leaves
    cdef Gate gate                         # level `machine`: what waits for the disk; else None
    cdef uint64_t settled                  # position of the journal that the last settle() came to
    cdef bint note_consumed                # records were taken whose sender wants the journal to say so
    cdef dict arrivals                     # (rings, producer) -> (position, weights): records dealt with that came through rings of before
    cdef int access_fd                       # verdicts come by it; -1: nobody checks
    cdef uint64_t access_seen              # what Counters.access_generation was last
    cdef list rechecking                   # connections that a reload of rules or bans has not come to yet
    cdef bint rules_moved                  # of rules, too
    cdef uint64_t cycle_from               # position of the journal where the current cycle of snapshots began
    cdef list cycle_left                   # sessions still to be written in it; None between two
    cdef uint64_t cycle_bytes              # journal.cycle_bytes
    cdef uint64_t cycle_due_bytes          # of the journal, from which on the next one begins
    cdef object retention                  # settings section
    cdef object spill_source               # directory of spilled messages
    # While the rings of another number of workers are read, each by all workers: keys of sessions that others have now, and whether
    # this worker is the one that looks after messages for members who are nowhere. Else None.
    cdef set elsewhere
    cdef bint heir
    cdef public object started             # callable once everybody serves: what recovered sessions have missed
    cdef public object on_command          # callable(command) -> answer, see commands.pyx
    cdef list commands                     # of the manager, not carried out yet
    cdef list answers                      # that the manager's ring had no room for yet

    cdef uint64_t read_clock(self) noexcept
    cdef int listen_to(self, int fd, uint32_t events) except -1
    cdef bint lanes_waiting(self) except -1
    cdef int send_away(self, Connection connection, bytes reference) except -1
    cdef int take_the_rest(self, uint64_t deadline_ms) except -1
    cdef list rings_at_rest(self, list inboxes)
    cdef int one_pass(self, int timeout_ms) except -1
    cdef int send_all(self) except -1
    cdef int serve_events(self, epoll_event* events, int count) except -1
    cdef int run_timers(self) except -1
    cdef int look_around(self) except -1
    cdef int flush_all(self, list dirty) except -1
    cdef int accept_some(self, int channel) except -1
    cdef int take_over(self, Handover handover) except -1
    cdef int drain_lanes(self) except -1
    cdef int drain_manager(self) except -1
    cdef int drain_lane(self, int producer, Ring ring) except -1
    cdef int take_records(self, int producer, Ring ring, int* taken) except -1
    cdef int record_failed(self, int producer, object error) except -1
    cdef bytes read_spilled(self, const uint8_t* record, RecordHeader* header)
    cdef int settle(self) except -1
    cdef int release_lanes(self) except -1
    cdef int take_snapshots(self) except -1
    cdef int settle_synced(self, Writer writer) except -1
    cdef int write_consumed(self) except -1
    cdef int cycle_if_due(self) except -1
    cdef int begin_cycle(self) except -1
    cdef int write_arrivals(self) except -1
    cdef int save_again(self, object left) except -1
    cdef int watch_disk(self) except -1
    cdef bint must_wait(self, Connection connection) noexcept
    cdef bint on_record(self, int producer, const uint8_t* record, uint32_t size) except -1
    cdef bint on_publish_record(self, int producer, RecordHeader* header, const uint8_t* body) except -1
    cdef int change_topics(self, settings) except -1
    cdef int next_member(self, bytes group, bytes filter, uint64_t failed, Message message, int attempts) except -1
    cdef int flush_sockets(self) except -1
    cdef int resume_parked(self) except -1
    cdef int resume_busy(self) except -1
    cdef int resume_limited(self) except -1
    cdef int look_at_memory(self) except -1
    cdef int look_at_access(self) except -1
    cdef int take_verdicts(self) except -1
    cdef int give_verdict(self, waiter, verdict) except -1
    cdef int pause_client(self, bytes client_id) except -1
    cdef int send_pause(self, int process, bytes client_id) except -1
    cdef int share_out(self, int ready) except -1
    cdef int carry_out_commands(self) except -1
    cdef int send_answers(self) except -1
