"""Authorization of one connection; see authorization.pxd."""

from libc.stdint cimport uint8_t

from shardbroker.access.acl_cache cimport ALLOWED, DENIED, UNKNOWN, AclCache
from shardbroker.hooks.masks cimport HOOK_CLIENT_AUTHORIZE, HOOK_CLIENT_CHECK_AUTHZ_COMPLETE
from shardbroker.mqtt.spec cimport ADMINISTRATIVE_ACTION, BANNED, NOT_AUTHORIZED
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.session cimport Will
from shardbroker.worker.channel cimport CLOSING, CONNECTED, SIDE_SERVER, Channel
from shardbroker.worker.router cimport Router
from shm.address cimport address_text, parse_address
from shm.counters cimport AUTHORIZATION_ALLOW, AUTHORIZATION_DENY, AUTHORIZATION_NOMATCH, CLIENT_BANNED, CLIENT_FLAPPING
from shm.events cimport EVENT_DENIED, EVENT_FLAPPING

import time
from dataclasses import replace

from shardbroker.access.contract import AuthRequest, Client
from shardbroker.access.rules import client_rules
from shardbroker.access.wire import Kind, Status
from shardbroker.hooks.contract import PENDING
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import STREAM, parse_subscription

__all__ = ["Authorization"]

cdef uint64_t NEVER = <uint64_t>-1

AUTHORIZE = "client.authorize"
"""Hook point that programs outside the broker decide."""

REQUESTS_A_MESSAGE = 64
"""Topics in one request."""

REQUEST_TOPIC_BYTES = 65536
"""Bytes of the topics in one request."""


cdef class Inquiry:
    """Requests about topics that only back ends can decide."""

    def __init__(self, Authorization access, list requests, then):
        self.access = access
        self.open = requests
        self.sent = []
        self.then = then

    cdef bint send(self) except -1:
        """Sends the next requests; False if all are sent. Requests to hook programs and to sources are sent separately."""
        cdef Authorization access = self.access
        cdef int size = 0
        while self.open:
            self.sent = []
            size = 0
            while self.open and len(self.sent) < REQUESTS_A_MESSAGE and size < REQUEST_TOPIC_BYTES:
                request = self.open[len(self.open) - 1]
                if access.decide(request) is None:
                    of_hooks = access.hooked is not None and access.hooked.get(request) is PENDING
                    if self.sent and of_hooks != self.of_hooks:
                        break
                    self.of_hooks = of_hooks
                    self.sent.append(request)
                    size += len(request.topic)
                self.open.pop()
            if not self.sent:
                continue
            details = [[one.action, one.topic, one.qos, one.retain] for one in self.sent]
            if self.of_hooks:
                timeout = access.channel.context.hooked.exhook.patience(AUTHORIZE)
                self.id = access.gate.request(Kind.HOOK_ACL, self, access.client, details, timeout)
            else:
                self.id = access.gate.request(Kind.ACL, self, access.client, details, access.channel.router.acl.timeout)
            if self.id:
                return True
            if self.of_hooks:
                self.answer_hooks(None, True)
            else:
                self.answer(None, True)
        return False

    cdef int answer_hooks(self, object decisions, bint unsure) except -1:
        """Stores the decisions of hook programs. Rules and sources decide about the topics that are left."""
        cdef Authorization access = self.access
        if decisions is None or len(decisions) != len(self.sent):
            unsure = True
            refused = access.channel.context.hooked.exhook.refuses(AUTHORIZE) and not access.granted
            decisions = [False if refused else None] * len(self.sent)
        if access.hooked is None:
            access.hooked = {}
        access.unsure = access.unsure or unsure
        for request, decision in zip(self.sent, decisions):
            access.hooked[request] = decision
            if decision is None:
                self.open.append(request)
        self.sent = []
        return 0

    cdef int answer(self, object decisions, bint failed) except -1:
        """Stores the decisions of back ends. A failed request has no effect beyond the current packet."""
        cdef Authorization access = self.access
        cdef Channel channel = access.channel
        cdef AclCache acl_cache = channel.acl_cache
        cdef bint allowed
        acl = channel.router.acl
        if decisions is None or len(decisions) != len(self.sent):
            failed = True
        for place, request in enumerate(self.sent):
            if failed:
                allowed = access.granted or acl.on_timeout == "allow"
            elif decisions[place] is None:
                channel.context.count(AUTHORIZATION_NOMATCH)
                allowed = acl.no_match == "allow"
            else:
                allowed = bool(decisions[place])
            access.decided[request] = allowed
            if not failed and acl.cache.enable and acl_cache is not None:
                acl_cache.remember(
                    request.topic.encode(), request.action == "subscribe", request.qos | request.retain << 2, allowed,
                    channel.context.now_ms + <uint64_t>(acl.cache.ttl * 1000), channel.router.access_generation)
        self.sent = []
        return 0

    def on_result(self, result) -> None:
        """Continues with the result from integrations; after a timeout, its status is FAILED."""
        cdef Channel channel = self.access.channel
        self.id = 0
        try:
            decided = result.status == Status.DECIDED and result.details
            if self.of_hooks:
                self.answer_hooks(result.details[0] if decided else None, not decided or result.details[1])
            else:
                self.answer(result.details[0] if decided else None, not decided)
            if not self.send():
                self.access.inquiries.discard(self)
                self.then()
        except MqttError as error:
            channel.fail(error.reason_code, str(error))
        except Exception as error:
            channel.broken(error)

    def cancel(self) -> None:
        if self.id:
            self.access.gate.forget(self.id)


cdef object client_of(Channel channel, bytes client_id, bytes password):
    cdef bytes username = channel.username
    cdef dict known
    if channel.access is not None and password is None:
        client = channel.access.client
        return client if client.password is None else replace(client, password=None)
    known = channel.listener_facts() or {}
    host, _, port = address_text(&channel.peer).rpartition(":")
    return Client(
        client_id.decode(), None if username is None else username.decode(), password, host.strip("[]"), int(port or 0),
        channel.listener_name(), channel.version, known.get("cn"), known.get("dn"))


cdef Channel absent_channel(Router router):
    """Returns a closed channel for actions on behalf of a client without a connection."""
    cdef Channel channel = Channel.__new__(Channel)
    channel.context = router
    channel.router = router
    channel.state = CLOSING
    channel.closed = True
    return channel


cdef class Authorization:
    """client_id: of the session. password: of CONNECT, kept until it is sent to a back end; None otherwise."""

    def __init__(self, Channel channel not None, bytes client_id not None, bytes password=None):
        self.channel = channel
        self.gate = channel.router.access_gate
        self.client_id = client_id
        self.prefix = b""
        self.decided = {}
        self.inquiries = set()
        self.client = client_of(channel, client_id, password)

    cdef bint unchecked(self) except -1:
        """Returns whether every topic is allowed without a check."""
        return self.superuser or (
            self.own_acl is None and not self.gate.has_sources and not self.channel.context.hooks & HOOK_CLIENT_AUTHORIZE)

    # --- wills, once the client is gone ------------------------------------------------------------------------------------------------

    def rights(self) -> dict[str, object]:
        """Returns the rights from the login, for origin_of_will()."""
        return {"user": self.client.username, "superuser": bool(self.superuser), "acl": self.own_acl}

    @staticmethod
    def of_will(Router router not None, bytes client_id not None, dict origin not None) -> Authorization:
        """Returns the rights of the sender of a will, whose connection is closed, from the data of origin_of_will()."""
        cdef Channel channel = absent_channel(router)
        cdef Authorization access
        username = origin.get("username")
        channel.wanted_id = client_id
        channel.username = None if username is None else username.encode()
        channel.version = origin.get("version", 0)
        channel.peer = parse_address(origin["peer"])
        access = Authorization(channel, client_id)
        access.client = replace(
            access.client, username=origin.get("user", username), listener=origin.get("listener", ""), cert_common_name=origin.get("cn"),
            cert_subject=origin.get("dn"))
        access.superuser, access.own_acl = origin.get("superuser", False), origin.get("acl")
        access.prefix = origin.get("prefix", "").encode()
        access.granted = True
        return access

    def check_will(self, Will will not None) -> None:
        """Publishes the will if it is still allowed; later, if back ends have to decide."""
        cdef Router router = self.channel.router
        cdef bint denied = False
        try:
            request = self.will_request(will.message.topic, will.message.qos, will.message.retain)
        except MqttError:
            request = None                # release_will() drops it as malformed
        if request is not None and not self.unchecked():
            if not self.inquire([request], lambda: self.check_will(will), False):
                return
            denied = not self.decide(request)
            if denied:
                router.count(AUTHORIZATION_DENY)
                self.report_denied("will", request.topic.encode())
        router.release_will(will, router.sessions.get(self.client_id), denied)

    cdef object will_request(self, bytes topic, int qos, bint retain):
        """Returns the request about the topic behind `$delayed/<seconds>/`, without the mount point."""
        cdef uint64_t at_ms
        topic = self.channel.router.admission.take_delay(topic, &at_ms)
        return AuthRequest("publish", topic.removeprefix(self.prefix).decode(), qos, bool(retain))

    cdef list topics_of(self, Session session):
        cdef Subscription subscription
        return [
            AuthRequest("subscribe", self.channel.unmounted(subscription.filter).decode(), subscription.qos)
            for subscription in session.all_subscriptions()
        ]

    cdef int drop_denied(self, Session session) except -1:
        """Ends the subscriptions that are no longer allowed."""
        cdef Subscription subscription
        cdef Channel channel = self.channel
        cdef bytes filter
        for subscription in session.all_subscriptions():
            filter = channel.unmounted(subscription.filter)
            if not self.decide(AuthRequest("subscribe", filter.decode(), subscription.qos)):
                self.report_denied("subscription", filter)
                if channel.router.subscriptions.unsubscribe(session, subscription.wire_filter, 0) and session.logged:
                    channel.context.recorder.unsubscribed(session, subscription.wire_filter)
        return 0

    # --- topics -----------------------------------------------------------------------------------------------------------------------

    cdef int work_out_rules(self) except -1:
        cdef uint32_t generation = self.channel.router.access_generation
        if self.rules is None or self.rules_of != generation:
            self.rules = [] if self.own_acl is None else [client_rules(self.own_acl).for_client(self.client)]
            self.rules += self.gate.local_rules(self.client)
            self.rules_of = generation
        return 0

    cdef object decide(self, object request):
        """Returns True or False; None while the result of a back end is missing. `no_match`: no rule matched."""
        self.no_match = False
        self.source = "hook"
        if self.channel.context.hooks & HOOK_CLIENT_AUTHORIZE:
            if self.hooked is None:
                self.hooked = {}
            if request not in self.hooked:
                self.hooked[request] = self.channel.context.hooked.authorize(self.client, request)
                self.unsure = self.unsure or self.channel.context.hooked.registry.failed
            decision = self.hooked[request]
            if decision is PENDING:
                return None
            if decision is not None:
                return decision
        self.work_out_rules()
        for place, rules in enumerate(self.rules):
            decision = rules.decide(request)
            if decision is not None:
                self.source = "client_info" if place == 0 and self.own_acl is not None else "file"
                return decision
        self.source = "backend"
        if self.gate.has_remote:
            return self.decided.get(request)
        self.source = "default"
        if not self.gate.has_sources and self.own_acl is None:
            return True                    # there are no rules: only hooks decide
        self.no_match = True
        return self.channel.router.acl.no_match == "allow"

    cdef list unknown_of(self, list requests):
        return [request for request in dict.fromkeys(requests) if self.decide(request) is None]

    def inquire(self, list requests, then, bint hold=True) -> bool:
        """Returns whether all requests are decided. Otherwise it sends them, stops reading, and calls `then` after the results."""
        cdef Inquiry inquiry
        unknown = self.unknown_of(requests)
        if not unknown:
            return True
        inquiry = Inquiry(self, unknown, then)
        if not inquiry.send():
            return True
        self.inquiries.add(inquiry)
        if hold:
            self.channel.suspend_reading()
        return False

    def may_publish(self, bytes topic, int qos, bint retain, uint64_t serial) -> int:
        """Returns ALLOWED, DENIED, or UNKNOWN: then reading stops, and the packet is handled again after the result."""
        cdef Channel channel = self.channel
        cdef uint8_t combination = <uint8_t>(qos | retain << 2)
        cdef uint32_t generation = channel.router.access_generation
        cdef uint64_t ttl_ms
        cdef AclCache acl_cache = channel.acl_cache
        cdef int known = acl_cache.look(topic, False, combination, channel.context.now_ms, generation, serial)
        if known == UNKNOWN:
            request = AuthRequest("publish", topic.decode(), qos, retain)
            if not self.inquire([request], self.go_on):
                return UNKNOWN
            remote = request in self.decided
            known = ALLOWED if self.decide(request) else DENIED
            if remote:
                del self.decided[request]
            elif not channel.context.hooks & HOOK_CLIENT_AUTHORIZE:
                acl_cache.remember(topic, False, combination, known == ALLOWED, NEVER, generation)
            elif channel.router.acl.cache.enable and not self.unsure:
                ttl_ms = <uint64_t>(channel.router.acl.cache.ttl * 1000)
                acl_cache.remember(topic, False, combination, known == ALLOWED, channel.context.now_ms + ttl_ms, generation)
            if not self.inquiries:
                self.forget_hooked()
            if self.no_match:
                channel.context.count(AUTHORIZATION_NOMATCH)
            self.decided_of(request, known == ALLOWED)
        elif self.decided:
            # The result of a back end has just arrived and is in the cache as well. Kept here, it would outlive its entry there.
            self.decided.pop(AuthRequest("publish", topic.decode(), qos, retain), None)
            if not self.inquiries:
                self.forget_hooked()
        channel.context.count(AUTHORIZATION_ALLOW if known == ALLOWED else AUTHORIZATION_DENY)
        if known == DENIED:
            self.report_denied("publish", topic)
        return known

    def prepare(self, list topics) -> bool:
        """Returns whether all filters of a SUBSCRIBE are decided. Otherwise reading stops until they are."""
        return self.inquire([request for request in map(self.filter_request, topics) if request is not None], self.go_on)

    def may_subscribe(self, bytes wire_filter, int options) -> bool:
        """Returns whether a subscription is allowed. Called after prepare()."""
        request = self.filter_request((wire_filter, options))
        if request is None:
            return True                    # SUBSCRIBE refuses it as malformed
        allowed = bool(self.decide(request))
        if self.no_match:
            self.channel.context.count(AUTHORIZATION_NOMATCH)
        self.channel.context.count(AUTHORIZATION_ALLOW if allowed else AUTHORIZATION_DENY)
        if not allowed:
            self.report_denied("subscribe", wire_filter)
        self.decided_of(request, allowed)
        return allowed

    def filter_request(self, topic):
        """A filter of SUBSCRIBE with its options as a request; None for what is no filter, or no stream."""
        wire_filter, options = topic
        try:
            filter = parse_subscription(wire_filter)[1]
            if filter.startswith(STREAM):      # below a mount point all that is there
                filter = b"#" if self.channel.mounted else self.channel.router.journal_replays.streams.filter_of(wire_filter)
        except MqttError:
            return None
        return AuthRequest("subscribe", filter.decode(), options & 3)

    cdef int decided_of(self, object request, bint allowed) except -1:
        """Runs client.check_authz_complete."""
        if self.channel.context.hooks & HOOK_CLIENT_CHECK_AUTHZ_COMPLETE:
            self.channel.context.hooked.action_decided(self.client, request, allowed, self.source)
        return 0

    def go_on(self) -> None:
        """Reads on: the pending requests are decided."""
        self.channel.resume_reading()

    def packet_done(self) -> None:
        """Drops the decisions for the current packet."""
        self.decided.clear()
        self.forget_hooked()

    def forget_hooked(self) -> None:
        self.hooked = None
        self.unsure = False

    cdef int report_denied(self, str action, bytes topic) except -1:
        """Sends an event for one line in the log, within a rate limit."""
        cdef Channel channel = self.channel
        if self.gate.may_report(channel.context.now_ms):
            channel.send_event(EVENT_DENIED, NOT_AUTHORIZED, SIDE_SERVER, f"{action} {topic.decode(errors='replace')}")
        return 0

    # --- changes of rules and bans ----------------------------------------------------------------------------------------------------

    def recheck(self) -> None:
        """Checks the subscriptions again after a change of the rules or the user name."""
        cdef Session session = self.channel.session
        if self.channel.state != CONNECTED:
            return
        if self.unchecked():
            self.channel.acl_cache = None
            return
        if self.channel.acl_cache is None:
            self.channel.acl_cache = AclCache(self.channel.router.acl.cache.max_size)    # the login had no checks
        if self.inquire(self.topics_of(session), self.recheck, False):
            self.drop_denied(session)
            if not self.inquiries:
                self.packet_done()

    def check_ban(self) -> None:
        """Disconnects the client if a new ban matches it."""
        cdef Channel channel = self.channel
        ban = self.gate.ban_of(self.client)
        if ban is not None and channel.state == CONNECTED:
            channel.context.count(CLIENT_BANNED)
            channel.disconnect(ADMINISTRATIVE_ACTION, "banned")
            channel.close(ADMINISTRATIVE_ACTION, SIDE_SERVER, f"banned by {ban.kind}" + (f": {ban.reason}" if ban.reason else ""), True)

    def closed(self, bint was_connected) -> None:
        """Drops the pending login and inquiries of a closed connection; a client that disconnects too often is banned."""
        cdef Inquiry inquiry
        login, self.login = self.login, None       # they refer to each other, and cycles are not collected here
        if login is not None:
            login.closed()
        for inquiry in self.inquiries:
            inquiry.cancel()
        self.inquiries.clear()
        flapping = self.gate.flapping
        if was_connected and flapping is not None and flapping.disconnected(self.client.client_id, self.channel.context.now_ms / 1000):
            self.channel.context.count(CLIENT_FLAPPING)
            self.gate.banned.flapped(self.client.client_id, time.time() + flapping.ban_s)
            self.channel.send_event(
                EVENT_FLAPPING, BANNED, SIDE_SERVER,
                f"banned for {flapping.ban_s:g} s: {flapping.max_count} disconnects within {flapping.window_s:g} s")
