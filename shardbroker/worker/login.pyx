"""Authentication of one connection; see login.pxd."""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport uint32_t

from shardbroker.access.acl_cache cimport AclCache
from shardbroker.hooks.masks cimport HOOK_CLIENT_AUTHENTICATE, HOOK_CLIENT_CHECK_AUTHN_COMPLETE
from shardbroker.mqtt.packets cimport Connect
from shardbroker.mqtt.spec cimport (
    BAD_AUTHENTICATION_METHOD, BAD_USER_NAME_OR_PASSWORD, BANNED, CONTINUE_AUTHENTICATION, NOT_AUTHORIZED, REAUTHENTICATE, SERVER_BUSY,
    SERVER_UNAVAILABLE, SUCCESS,
)
from shardbroker.session.session cimport Session, Will
from shardbroker.worker.channel cimport AUTHENTICATING, CONNECTED, SIDE_SERVER
from shardbroker.worker.packets.connect cimport accept
from shm.counters cimport (
    AUTHENTICATION_FAILURE, AUTHENTICATION_SUCCESS, AUTHENTICATION_SUCCESS_ANONYMOUS, AUTHENTICATION_UNAVAILABLE,
    AUTHORIZATION_SUPERUSER, CLIENT_BANNED, PACKETS_AUTH_SENT, PACKETS_CONNACK_AUTH_ERROR,
)

import time
from dataclasses import replace

from shardbroker.access.contract import Client, Outcome
from shardbroker.access.rules import RuleError, client_rules
from shardbroker.access.wire import Kind, Status
from shardbroker.hooks.contract import PENDING
from shardbroker.mqtt.errors import MqttError, ProtocolError
from shardbroker.mqtt.packets import Auth
from shardbroker.mqtt.spec import PropertyId

__all__ = ["Login"]

CLIENT_REASONS = {
    BAD_USER_NAME_OR_PASSWORD: "bad user name or password", NOT_AUTHORIZED: "not authorized", SERVER_UNAVAILABLE: "try again later",
    BANNED: "banned",
}
"""Reason strings of CONNACK; the log has the details. A client that guesses names must not learn which of them exist."""

AUTHENTICATE = "client.authenticate"
"""Hook point that programs outside the broker decide."""

ANSWER_S = 1.0
"""Beyond auto_subscribe.timeout until integrations has answered: its answer says which source has failed."""

WAITING_BYTES_MAX = 8 << 20
"""Bytes of the pending requests of one worker, which integrations keep in memory: 20,000 of usual size, 20 of the largest."""


cdef class Login:
    """access: of the connection, with the password of CONNECT. packet: CONNECT, which is well-formed."""

    def __init__(self, Authorization access not None, Connect packet not None):
        self.access = access
        self.channel = access.channel
        self.gate = access.gate
        self.packet = packet
        packet.password = None             # `access` keeps it until it is sent
        self.method = (packet.properties or {}).get(PropertyId.AUTHENTICATION_METHOD)
        self.authn = (self.channel.listener_facts() or {}).get("authn")

    @staticmethod
    def after_connack(Authorization access not None, bytes method not None) -> Login:
        """Returns the login of a client that may begin a re-authentication."""
        cdef Login login = Login.__new__(Login)
        login.access = access
        login.channel = access.channel
        login.gate = access.gate
        login.method = method
        login.authn = (access.channel.listener_facts() or {}).get("authn")
        return login

    def kept_method(self) -> bytes | None:
        """Returns the argument of `after_connack`."""
        return self.method

    # --- authentication ------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the login of a client whose CONNECT is well-formed."""
        entrance = self.gate.entrance(self.access.client.listener, self.authn)
        if self.banned():
            return
        if self.method is not None and self.method.decode() not in entrance.methods:
            self.denied(BAD_AUTHENTICATION_METHOD, "unsupported authentication method")      # [MQTT-4.12.0-1]
        elif not self.access.client.username and self.method is None and entrance.denies_anonymous:
            self.channel.context.count(AUTHENTICATION_FAILURE)
            self.denied(NOT_AUTHORIZED, "user name is required (auth.quick_deny_anonymous)")
        elif not (self.channel.context.hooks & HOOK_CLIENT_AUTHENTICATE and self.method is None and self.hooks_decide()):
            self.query_chain()

    cdef bint banned(self) except -1:
        """Refuses a banned client and returns whether it was one. Called at CONNECT, and again once the user name is known."""
        ban = self.gate.ban_of(self.access.client)
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
        self.access.client = replace(self.access.client, username=username.decode())
        return True

    cdef int query_chain(self) except -1:
        entrance = self.gate.entrance(self.access.client.listener, self.authn)
        if not entrance.chain:
            self.channel.context.count(AUTHENTICATION_SUCCESS_ANONYMOUS)
            self.decided(SUCCESS, True)
            self.find_subscriptions()
        elif self.too_many_wait():
            return 0
        else:
            data = (self.packet.properties or {}).pop(PropertyId.AUTHENTICATION_DATA, None)
            self.query_login(Kind.LOGIN, [entrance.chain, None if self.method is None else self.method.decode(), data])
            self.access.client = replace(self.access.client, password=None)
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
        answer = self.channel.context.hooked.authenticate(self.access.client)
        if answer is PENDING:
            return self.query_hooks()
        if answer.outcome is Outcome.IGNORE:
            return False
        self.access.client = replace(self.access.client, password=None)
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
        self.request = self.gate.request(Kind.HOOK_LOGIN, self, self.access.client, [], exhook.patience(AUTHENTICATE))
        if not self.request:
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
            self.access.client = replace(self.access.client, password=None)
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
        self.request = self.gate.request(kind, self, self.access.client, details, self.channel.router.auth.timeout)
        if not self.request:
            return self.login_failed("queue to process integrations is full")
        if kind == Kind.LOGIN:
            self.conversation = self.request
        return self.channel.suspend_reading()

    def on_result(self, result) -> None:
        """Continues with the result from integrations; after a timeout, its status is FAILED."""
        cdef Channel channel = self.channel
        self.request = 0
        try:
            if self.waits_for_hooks:
                self.waits_for_hooks = False
                self.on_hooks_result(result)
            elif self.waits_for_subscriptions:
                self.waits_for_subscriptions = False
                self.on_subscriptions(result)
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
        """Continues a successful login. details: [superuser, acl, expires at, authentication data, user name, subscriptions if asked]."""
        cdef Channel channel = self.channel
        self.access.superuser, self.access.own_acl, expires_at, self.data, username, *asked = details
        if self.access.own_acl is not None:
            try:
                client_rules(self.access.own_acl)
            except RuleError as error:
                return self.denied(NOT_AUTHORIZED, f"rules of the authenticator are not valid: {error}")
        if username is not None and not self.take_name(username.encode()):
            return 0
        if expires_at is not None:
            # CLOCK_MONOTONIC drives now_ms, so a clock that is set moves no deadline.
            self.access.ends_at_ms = channel.context.now_ms + <uint64_t>max(1.0, (expires_at - time.time()) * 1000)
        channel.context.count(AUTHENTICATION_SUCCESS if self.access.client.username else AUTHENTICATION_SUCCESS_ANONYMOUS)
        self.access.rules = None
        self.decided(SUCCESS, False)
        if channel.state != CONNECTED and not asked:
            self.find_subscriptions()
        elif channel.state != CONNECTED:
            self.access.subscriptions = asked[0]
            self.check_and_accept()
        elif not self.banned():
            self.reauthenticated()
        return 0

    cdef int find_subscriptions(self) except -1:
        """Has auto_subscribe.sources looked up where no chain did so, and continues then."""
        if self.banned():
            return 0
        if not self.gate.subscriptions.sources:
            self.check_and_accept()
        elif not self.too_many_wait():
            self.request = self.gate.request(
                Kind.SUBSCRIPTIONS, self, self.access.client, [], self.gate.subscriptions.timeout + ANSWER_S)
            self.waits_for_subscriptions = self.request != 0
            if self.waits_for_subscriptions:
                self.channel.suspend_reading()
            else:
                self.on_subscriptions(None)
        return 0

    cdef int on_subscriptions(self, object result) except -1:
        """Continues with a result; None: the request could not be sent."""
        if result is not None and result.status == Status.OK:
            self.access.subscriptions = result.details[0]
        elif result is not None and result.status == Status.DENY:
            return self.denied(result.details[0], result.details[1])
        elif self.gate.subscriptions.on_error == "deny":
            return self.denied(SERVER_UNAVAILABLE, "subscriptions not found out: no result of the process integrations")
        self.check_and_accept()
        return 0

    cdef int denied(self, int reason_code, str text) except -1:
        """Refuses the login with CONNACK, or a re-authentication with DISCONNECT [MQTT-4.12.1-2]."""
        cdef Channel channel = self.channel
        self.decided(reason_code, False)
        if channel.state == CONNECTED:
            channel.disconnect(NOT_AUTHORIZED, text)
            return channel.close(NOT_AUTHORIZED, SIDE_SERVER, f"re-authentication: {text}", True)
        channel.context.count(PACKETS_CONNACK_AUTH_ERROR)
        return channel.refuse(channel.version, reason_code, CLIENT_REASONS.get(reason_code, text), text)

    cdef int decided(self, int reason_code, bint is_anonymous) except -1:
        """Runs client.check_authn_complete."""
        if self.channel.context.hooks & HOOK_CLIENT_CHECK_AUTHN_COMPLETE:
            self.channel.context.hooked.login_decided(self.channel, reason_code, self.access.superuser, is_anonymous)
        return 0

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
            raise ProtocolError("AUTH without an authentication method in CONNECT", "MQTT-4.12.0-7")
        if properties.get(PropertyId.AUTHENTICATION_METHOD) != self.method:
            raise ProtocolError("AUTH with a different authentication method than CONNECT", "MQTT-4.12.0-5")
        data = properties.get(PropertyId.AUTHENTICATION_DATA, b"")
        if packet.reason_code == CONTINUE_AUTHENTICATION and self.challenged:
            self.query_login(Kind.AUTH, [self.conversation, data])
        elif packet.reason_code == REAUTHENTICATE and self.channel.state == CONNECTED and not self.challenged:
            self.query_login(Kind.LOGIN, [self.gate.entrance(self.access.client.listener, self.authn).chain, self.method.decode(), data])
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
        channel.acl_cache = None if self.access.unchecked() else AclCache(channel.router.acl.cache.max_size)
        channel.resume_reading()
        self.access.recheck()
        return 0

    cdef int note_will(self) except -1:
        """Stores the present rights with the will, which is checked against them when it is published."""
        cdef Session session = self.channel.session
        cdef Will will = session.will
        if will is not None:
            will.origin = will.origin | self.access.rights()
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

    def check_and_accept(self) -> None:
        """Checks the topics known at CONNECT, of the will and of the session that the client resumes, and accepts the client then."""
        cdef Session session = self.channel.router.sessions.get(self.access.client_id)
        cdef list requests = []
        if self.banned() or not self.channel.mount(self.access.client.username):
            return
        if self.access.superuser:
            self.channel.context.count(AUTHORIZATION_SUPERUSER)
        if self.access.unchecked():
            self.finish_login()
            return
        self.channel.acl_cache = AclCache(self.channel.router.acl.cache.max_size)
        will = self.packet.will
        if will is not None:
            requests.append(self.access.will_request(will.topic, will.qos, will.retain))
        if session is not None and not self.packet.clean_start:
            requests += self.access.topics_of(session)
        if self.access.inquire(requests, self.check_and_accept):
            self.finish_login()

    cdef int finish_login(self) except -1:
        cdef Channel channel = self.channel
        cdef Session session
        packet, will = self.packet, self.packet.will
        if will is not None and not self.access.unchecked():
            if not self.access.decide(self.access.will_request(will.topic, will.qos, will.retain)):
                self.access.report_denied("will", will.topic)
                return self.denied(NOT_AUTHORIZED, "will topic denied")
        session = channel.router.sessions.get(self.access.client_id)
        if session is not None and not self.access.unchecked() and not packet.clean_start:
            self.access.drop_denied(session)      # before the messages in its queue are sent
        self.packet = None
        self.access.packet_done()
        if self.access.client.password is not None:
            self.access.client = replace(self.access.client, password=None)
        accept(channel, packet, self.access.client_id)
        return 0 if channel.claiming else self.accepted()

    cdef int accepted(self) except -1:
        if self.method is None:
            self.access.login = None       # there is no re-authentication
        return self.channel.resume_reading()

    def closed(self) -> None:
        """Drops the pending login of a closed connection."""
        if self.request:
            self.gate.forget(self.request)
        if self.conversation and (self.challenged or self.request):
            self.gate.request(Kind.FORGET, self, Client(""), [self.conversation], 1.0)
