"""Authentication and authorization of one connection; see authorization.pxd."""

from cpython.bytes cimport PyBytes_GET_SIZE

from shardbroker.access.acl_cache cimport ALLOWED, DENIED, UNKNOWN, AclCache
from shardbroker.hooks.masks cimport HOOK_CLIENT_AUTHENTICATE, HOOK_CLIENT_AUTHORIZE
from shardbroker.mqtt.packets cimport Connect
from shardbroker.mqtt.spec cimport (
    ADMINISTRATIVE_ACTION, BAD_AUTHENTICATION_METHOD, BAD_USER_NAME_OR_PASSWORD, BANNED, CONTINUE_AUTHENTICATION,
    NOT_AUTHORIZED, REAUTHENTICATE, SERVER_BUSY, SERVER_UNAVAILABLE,
)
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.worker.channel cimport AUTHENTICATING, CLOSING, CONNECTED, SIDE_SERVER, Channel
from shardbroker.worker.packets.connect cimport accept
from shardbroker.session.session cimport Will
from shardbroker.worker.router cimport Router
from shm.address cimport address_text, parse_address
from shm.counters cimport (
    AUTHENTICATION_FAILURE, AUTHENTICATION_SUCCESS, AUTHENTICATION_SUCCESS_ANONYMOUS, AUTHENTICATION_UNAVAILABLE, AUTHORIZATION_ALLOW,
    AUTHORIZATION_DENY, AUTHORIZATION_NOMATCH, AUTHORIZATION_SUPERUSER, CLIENT_BANNED, CLIENT_FLAPPING, PACKETS_AUTH_SENT,
    PACKETS_CONNACK_AUTH_ERROR,
)
from shm.events cimport EVENT_DENIED, EVENT_FLAPPING

import time
from dataclasses import replace

from shardbroker.access.contract import Client, Outcome, AuthRequest
from shardbroker.access.rules import RuleError, client_rules
from shardbroker.access.wire import Kind, Status
from shardbroker.hooks.contract import PENDING
from shardbroker.mqtt.errors import MqttError, ProtocolError
from shardbroker.mqtt.packets import Auth
from shardbroker.mqtt.spec import PropertyId
from shardbroker.mqtt.topics import parse_subscription

__all__ = ["Authorization"]

cdef uint64_t NEVER = <uint64_t>-1

CLIENT_REASONS = {
    BAD_USER_NAME_OR_PASSWORD: "bad user name or password", NOT_AUTHORIZED: "not authorized", SERVER_UNAVAILABLE: "try again later",
    BANNED: "banned",
}
"""Reason strings of CONNACK; the log has the details. A client that guesses names must not learn which of them exist."""

AUTHENTICATE, AUTHORIZE = "client.authenticate", "client.authorize"
"""Hook points that programs outside the broker decide."""

REQUESTS_A_MESSAGE = 64
"""Topics in one request."""

WAITING_BYTES_MAX = 8 << 20
"""Bytes of the pending requests of one worker, which integrations keep in memory: 20,000 of usual size, 20 of the largest."""

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
    def __init__(self, Channel channel not None, Connect packet, bytes client_id not None):
        cdef bytes password = None
        self.channel = channel
        self.gate = channel.router.access_gate
        self.packet = packet
        self.client_id = client_id
        if packet is not None:
            self.method = (packet.properties or {}).get(PropertyId.AUTHENTICATION_METHOD)
            password = packet.password
            packet.password = None         # `client` keeps it until it is sent
        self.prefix = b""
        self.decided = {}
        self.inquiries = set()
        self.authn = (channel.listener_facts() or {}).get("authn")
        self.client = client_of(channel, client_id, password)

    # --- authentication ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the login of a client whose CONNECT is well-formed."""
        entrance = self.gate.entrance(self.client.listener, self.authn)
        if self.banned():
            return
        if self.method is not None and self.method.decode() not in entrance.methods:
            self.denied(BAD_AUTHENTICATION_METHOD, "unsupported authentication method")      # [MQTT-4.12.0-1]
        elif not self.client.username and self.method is None and entrance.denies_anonymous:
            self.channel.context.count(AUTHENTICATION_FAILURE)
            self.denied(NOT_AUTHORIZED, "user name is required (auth.quick_deny_anonymous)")
        elif not (self.channel.context.hooks & HOOK_CLIENT_AUTHENTICATE and self.method is None and self.hooks_decide()):
            self.query_chain()

    cdef bint banned(self) except -1:
        """Refuses a banned client and returns whether it was one. Called at CONNECT, and again once the user name is known."""
        ban = self.gate.ban_of(self.client)
        if ban is None:
            return False
        self.channel.context.count(CLIENT_BANNED)
        self.denied(BANNED, f"banned by {ban.kind}" + (f": {ban.reason}" if ban.reason else ""))
        return True

    cdef bint take_name(self, bytes username) except -1:
        """Replaces the user name of CONNECT by that of the authenticator. Returns False if the client is refused."""
        cdef Channel channel = self.channel
        cdef bytes bound = (channel.listener_facts() or {}).get("username")
        if bound is not None and bound != username:
            self.denied(NOT_AUTHORIZED, "user name does not match the client certificate")
            return False
        if channel.state == CONNECTED and channel.mounted and channel.username != username:
            self.denied(NOT_AUTHORIZED, "mountpoint belongs to another user")
            return False
        channel.username = username
        self.client = replace(self.client, username=username.decode())
        return True

    cdef int query_chain(self) except -1:
        entrance = self.gate.entrance(self.client.listener, self.authn)
        if not entrance.chain:
            self.channel.context.count(AUTHENTICATION_SUCCESS_ANONYMOUS)
            self.check_and_accept()
        elif self.too_many_wait():
            return 0
        else:
            data = (self.packet.properties or {}).pop(PropertyId.AUTHENTICATION_DATA, None)
            self.query_login(Kind.LOGIN, [entrance.chain, None if self.method is None else self.method.decode(), data])
            self.client = replace(self.client, password=None)
        return 0

    def too_many_wait(self) -> bool:
        """Refuses the login if the limits of pending logins are reached, and returns whether they were."""
        if self.gate.waiting < self.channel.router.auth.max_waiting and self.gate.waiting_bytes < WAITING_BYTES_MAX:
            return False
        self.channel.context.count(AUTHENTICATION_UNAVAILABLE)
        self.denied(SERVER_BUSY, "pending login limit (auth.max_waiting) reached")
        return True

    cdef bint hooks_decide(self) except -1:
        """Returns whether callbacks of client.authenticate decide the login, at once or later; the chain is not used then."""
        answer = self.channel.context.hooked.authenticate(self.client)
        if answer is PENDING:
            return self.query_hooks()
        if answer.outcome is Outcome.IGNORE:
            return False
        self.client = replace(self.client, password=None)
        if answer.outcome is Outcome.OK:
            self.logged_in([answer.is_superuser, answer.acl, answer.expires_at, answer.data, None])
        else:
            self.channel.context.count(AUTHENTICATION_FAILURE)
            self.denied(answer.reason_code or BAD_USER_NAME_OR_PASSWORD, "denied by a hook")
        return True

    cdef bint query_hooks(self) except -1:
        """Sends the login to hook programs. False: they are not available, and the settings allow to continue without them."""
        if self.too_many_wait():
            return True
        exhook = self.channel.context.hooked.exhook
        self.login = self.gate.request(Kind.HOOK_LOGIN, self, self.client, [], exhook.patience(AUTHENTICATE))
        if not self.login:
            if exhook.refuses(AUTHENTICATE):
                self.hooks_failed("queue to process integrations is full")
                return True
            return False
        self.waits_for_hooks = True
        self.channel.suspend_reading()
        return True

    cdef int on_hooks_result(self, object result) except -1:
        """Continues the login with the result of hook programs."""
        if result.status == Status.OK:
            self.client = replace(self.client, password=None)
            self.logged_in([False, None, None, None, None])
        elif result.status == Status.DENY:
            self.channel.context.count(AUTHENTICATION_FAILURE)
            self.denied(result.details[0], result.details[1])
        elif result.status == Status.IGNORE or not self.channel.context.hooked.exhook.refuses(AUTHENTICATE):
            self.query_chain()
        else:
            self.hooks_failed(result.details[0] if result.details else "no result")
        return 0

    def hooks_failed(self, str text) -> None:
        """Refuses the login: a hook program whose decision is required did not respond."""
        self.channel.context.count(AUTHENTICATION_UNAVAILABLE)
        self.denied(SERVER_UNAVAILABLE, text)

    cdef int query_login(self, object kind, list details) except -1:
        self.challenged = False
        self.login = self.gate.request(kind, self, self.client, details, self.channel.router.auth.timeout)
        if not self.login:
            return self.login_failed("queue to process integrations is full")
        if kind == Kind.LOGIN:
            self.conversation = self.login
        return self.channel.suspend_reading()

    def on_result(self, result) -> None:
        """Continues with the result from integrations; after a timeout, its status is FAILED."""
        cdef Channel channel = self.channel
        self.login = 0
        try:
            if self.waits_for_hooks:
                self.waits_for_hooks = False
                self.on_hooks_result(result)
            elif result.status == Status.OK:
                self.logged_in(result.details)
            elif result.status == Status.CONTINUE:
                self.challenge(result.details[0])
            elif result.status == Status.DENY:
                channel.context.count(AUTHENTICATION_UNAVAILABLE if result.details[0] == SERVER_UNAVAILABLE else AUTHENTICATION_FAILURE)
                self.denied(result.details[0], result.details[1])
            else:
                self.login_failed(result.details[0] if result.details else "no result")
        except MqttError as error:
            channel.fail(error.reason_code, str(error))
        except Exception as error:
            channel.broken(error)

    cdef int login_failed(self, str text) except -1:
        """Applies auth.on_timeout: there is no result of any authenticator."""
        self.channel.context.count(AUTHENTICATION_UNAVAILABLE)
        if self.channel.router.auth.on_timeout == "allow" and self.method is None:
            return self.logged_in([False, None, None, None, None])
        return self.denied(SERVER_UNAVAILABLE, text)

    cdef int logged_in(self, list details) except -1:
        """Continues a successful login. details: [superuser, acl, expires at, authentication data, user name]."""
        cdef Channel channel = self.channel
        self.superuser, self.own_acl, expires_at, self.data, username = details
        if self.own_acl is not None:
            try:
                client_rules(self.own_acl)
            except RuleError as error:
                return self.denied(NOT_AUTHORIZED, f"rules of the authenticator are not valid: {error}")
        if username is not None and not self.take_name(username.encode()):
            return 0
        if expires_at is not None:
            # CLOCK_MONOTONIC drives now_ms, so a clock that is set moves no deadline.
            self.ends_at_ms = channel.context.now_ms + <uint64_t>max(1.0, (expires_at - time.time()) * 1000)
        channel.context.count(AUTHENTICATION_SUCCESS if self.client.username else AUTHENTICATION_SUCCESS_ANONYMOUS)
        self.rules = None
        if channel.state != CONNECTED:
            self.check_and_accept()
        elif not self.banned():
            self.reauthenticated()
        return 0

    cdef int denied(self, int reason_code, str text) except -1:
        """Refuses the login with CONNACK, or a re-authentication with DISCONNECT [MQTT-4.12.1-2]."""
        cdef Channel channel = self.channel
        if channel.state == CONNECTED:
            channel.disconnect(NOT_AUTHORIZED, text)
            return channel.close(NOT_AUTHORIZED, SIDE_SERVER, f"re-authentication: {text}", True)
        channel.context.count(PACKETS_CONNACK_AUTH_ERROR)
        return channel.refuse(channel.version, reason_code, CLIENT_REASONS.get(reason_code, text), text)

    # --- enhanced authentication (MQTT 5.0 §4.12) ------------------------------------------------------------------------------------

    cdef int challenge(self, bytes data) except -1:
        cdef Channel channel = self.channel
        cdef bytes packet = Auth(
            CONTINUE_AUTHENTICATION, {PropertyId.AUTHENTICATION_METHOD: self.method, PropertyId.AUTHENTICATION_DATA: data}).encode(5)
        if channel.max_packet and <uint32_t>PyBytes_GET_SIZE(packet) > channel.max_packet:
            return self.denied(NOT_AUTHORIZED, "challenge exceeds the client's Maximum Packet Size")
        if channel.state != CONNECTED:
            channel.state = AUTHENTICATING
            channel.context.timers.arm(channel, channel.context.now_ms + channel.context.idle_timeout_ms)
        self.challenged = True
        channel.reply(PACKETS_AUTH_SENT, packet)             # [MQTT-4.12.0-2] [MQTT-4.12.0-5]
        return channel.resume_reading()

    def on_auth(self, packet) -> None:
        """Handles AUTH: the response to a challenge, or the start of a re-authentication."""
        properties = packet.properties or {}
        if self.method is None:
            raise ProtocolError("AUTH although CONNECT had no authentication method", "MQTT-4.12.0-7")
        if properties.get(PropertyId.AUTHENTICATION_METHOD) != self.method:
            raise ProtocolError("AUTH with a different authentication method than CONNECT", "MQTT-4.12.0-5")
        data = properties.get(PropertyId.AUTHENTICATION_DATA, b"")
        if packet.reason_code == CONTINUE_AUTHENTICATION and self.challenged:
            self.query_login(Kind.AUTH, [self.conversation, data])
        elif packet.reason_code == REAUTHENTICATE and self.channel.state == CONNECTED and not self.challenged:
            self.query_login(Kind.LOGIN, [self.gate.entrance(self.client.listener, self.authn).chain, self.method.decode(), data])
        else:
            raise ProtocolError(f"AUTH with reason 0x{packet.reason_code:02x} is not allowed in this state", "MQTT-4.12.0-3")

    cdef int reauthenticated(self) except -1:
        """Checks the rights of the client again after a re-authentication, which may have changed its user name."""
        cdef Channel channel = self.channel
        cdef bytes packet = Auth(
            0, {PropertyId.AUTHENTICATION_METHOD: self.method, PropertyId.AUTHENTICATION_DATA: self.data or b""}).encode(5)
        if <uint32_t>PyBytes_GET_SIZE(packet) > channel.max_packet:
            return self.denied(NOT_AUTHORIZED, "response exceeds the client's Maximum Packet Size")    # [MQTT-3.1.2-24]
        channel.reply(PACKETS_AUTH_SENT, packet)
        channel.arm_deadline()
        self.note_will()
        channel.acl_cache = None if self.unchecked() else AclCache(channel.router.acl.cache.max_size)
        channel.resume_reading()
        self.recheck()
        return 0

    cdef int note_will(self) except -1:
        """Stores the present rights with the will, which is checked against them when it is published."""
        cdef Session session = self.channel.session
        cdef Will will = session.will
        if will is not None:
            will.origin = will.origin | self.rights()
            if session.known:
                self.channel.context.recorder.will_set(
                    session, will.message, will.delay_s, will.expiry_s if will.has_expiry else None, will.origin)
        return 0

    def connack_properties(self) -> dict:
        """Returns the properties of CONNACK about the authentication [MQTT-4.12.0-5] [MQTT-4.12.0-6]."""
        if self.method is None:
            return {}
        return {PropertyId.AUTHENTICATION_METHOD: self.method} | (
            {} if self.data is None else {PropertyId.AUTHENTICATION_DATA: self.data})

    # --- from the result to CONNACK --------------------------------------------------------------------------------------------------

    cdef bint unchecked(self) except -1:
        """Returns whether every topic is allowed without a check."""
        return self.superuser or (
            self.own_acl is None and not self.gate.has_sources and not self.channel.context.hooks & HOOK_CLIENT_AUTHORIZE)

    def check_and_accept(self) -> None:
        """Checks the topics known at CONNECT, of the will and of the session that the client resumes, and accepts the client then."""
        cdef Session session = self.channel.router.sessions.get(self.client_id)
        cdef list requests = []
        if self.banned() or not self.channel.mount(self.client.username):
            return
        if self.superuser:
            self.channel.context.count(AUTHORIZATION_SUPERUSER)
        if self.unchecked():
            self.finish_login()
            return
        self.channel.acl_cache = AclCache(self.channel.router.acl.cache.max_size)
        will = self.packet.will
        if will is not None:
            requests.append(self.will_request(will.topic, will.qos, will.retain))
        if session is not None and not self.packet.clean_start:
            requests += self.topics_of(session)
        if self.inquire(requests, self.check_and_accept):
            self.finish_login()

    cdef int finish_login(self) except -1:
        cdef Channel channel = self.channel
        cdef Session session
        packet, will = self.packet, self.packet.will
        if will is not None and not self.unchecked():
            if not self.decide(self.will_request(will.topic, will.qos, will.retain)):
                self.report_denied("will", will.topic)
                return self.denied(NOT_AUTHORIZED, "will topic denied")
        session = channel.router.sessions.get(self.client_id)
        if session is not None and not self.unchecked() and not packet.clean_start:
            self.drop_denied(session)      # before the messages in its queue are sent
        self.packet = None
        self.packet_done()
        if self.client.password is not None:
            self.client = replace(self.client, password=None)
        accept(channel, packet, self.client_id)
        return channel.resume_reading()

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
        access = Authorization(channel, None, client_id)
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
        topic = self.channel.router.take_delay(topic, &at_ms)
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
                if channel.router.unsubscribe(session, subscription.wire_filter, 0) and session.logged:
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
        for rules in self.rules:
            decision = rules.decide(request)
            if decision is not None:
                return decision
        if self.gate.has_remote:
            return self.decided.get(request)
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
        return self.inquire([request for request in map(filter_request, topics) if request is not None], self.go_on)

    def may_subscribe(self, bytes wire_filter, int options) -> bool:
        """Returns whether a subscription is allowed. Called after prepare()."""
        request = filter_request((wire_filter, options))
        if request is None:
            return True                    # SUBSCRIBE refuses it as malformed
        allowed = bool(self.decide(request))
        if self.no_match:
            self.channel.context.count(AUTHORIZATION_NOMATCH)
        self.channel.context.count(AUTHORIZATION_ALLOW if allowed else AUTHORIZATION_DENY)
        if not allowed:
            self.report_denied("subscribe", wire_filter)
        return allowed

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
        """Drops the pending requests of a closed connection."""
        cdef Inquiry inquiry
        if self.login:
            self.gate.forget(self.login)
        if self.conversation and (self.challenged or self.login):
            self.gate.request(Kind.FORGET, self, Client(""), [self.conversation], 1.0)
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


def filter_request(topic):
    """A filter of SUBSCRIBE with its options as a request; None for what is no filter."""
    wire_filter, options = topic
    try:
        return AuthRequest("subscribe", parse_subscription(wire_filter)[1].decode(), options & 3)
    except MqttError:
        return None
