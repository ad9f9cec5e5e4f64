"""Gateways of emqx.conf, by its documented examples."""

import tomllib

from shardbroker.config import load
from shardbroker.config.foreign import to_toml
from shardbroker.config.foreign_emqx import read_emqx

FILE = """
gateway.stomp {
  enable = true
  mountpoint = "stomp/"
  enable_stats = true
  frame { max_headers = 12, max_headers_length = 2048, max_body_length = 8192 }
  clientinfo_override { username = "${Packet.headers.login}", password = "${Packet.headers.passcode}",
    clientid = "${ConnInfo.username}/${ConnInfo.clientid}" }
  listeners.tcp.default { bind = 61613, acceptors = 16, max_connections = 1024000, max_conn_rate = "1000/s",
    tcp_options { active_n = 100, backlog = 1024 }, access_rules = ["allow all"] }
  listeners.ssl.default { bind = "0.0.0.0:61614", ssl_options { certfile = "/c.pem", keyfile = "/k.pem", depth = 10 } }
}
gateway.mqttsn {
  clientinfo_override { username = "${Packet.x}", clientid = "all" }
  gateway_id = 3, broadcast = true, enable_qos3 = true
  predefined = [{ id = 1, topic = "predefined/topic/name/hello" }]
  listeners.udp.default { bind = 1884, max_connections = 10240000, udp_options { active_n = 100 } }
}
gateway.coap {
  connection_required = false, heartbeat = 30s, notify_type = qos, subscribe_qos = coap, publish_qos = qos1
  listeners.udp.default { bind = "0.0.0.0:5683" }
  listeners.dtls.default { bind = "0.0.0.0:5684", dtls_options { certfile = "/c.pem", keyfile = "/k.pem" } }
  authentication { mechanism = password_based, backend = built_in_database }
}
gateway.exproto {
  server { bind = "0.0.0.0:9100", ssl_options { enable = false } }
  handler { address = "http://127.0.0.1:9001", service_name = "ConnectionUnaryHandler",
    ssl_options { enable = false, verify = verify_none } }
  listeners.tcp.default { bind = 7993 }
  listeners.quic.default { bind = 7994 }
}
gateway.lwm2m { enable = true }
"""


def test_what_they_become() -> None:
    imported = read_emqx(FILE)
    text = to_toml(imported, "emqx.conf")
    gateways = tomllib.loads(text)["gateways"]
    assert gateways["stomp"] == {
        "enable": True, "mountpoint": "stomp/",
        "frame": {"max_headers": 12, "max_headers_length": 2048, "max_body_length": 8192},
        "clientinfo_override": {"username": "${username}", "password": "${password}", "clientid": "${username}/${clientid}"},
        "listeners": {
            "default": {
                "type": "tcp", "bind": "0.0.0.0:61613", "max_connections": 1024000, "max_conn_rate": "1000/s",
                "access_rules": ["allow all"],
            },
            "ssl-default": {"type": "ssl", "bind": "0.0.0.0:61614", "tls": {"certfile": "/c.pem", "keyfile": "/k.pem"}},
        },
    }  # fmt: skip
    assert gateways["mqttsn"] == {
        "enable": True, "gateway_id": 3, "advertise_interval": 900.0, "enable_qos3": True,
        "predefined": [{"id": 1, "topic": "predefined/topic/name/hello"}],
        "listeners": {"default": {"type": "udp", "bind": "0.0.0.0:1884", "max_connections": 10240000}},
    }  # fmt: skip
    assert gateways["coap"]["listeners"].keys() == {"default", "dtls-default"} and gateways["coap"]["publish_qos"] == "qos1"
    assert gateways["exproto"]["listeners"] == {"default": {"type": "tcp", "bind": "0.0.0.0:7993"}}
    assert gateways["exproto"]["server"]["bind"] == "0.0.0.0:9100"


def test_what_is_not_taken_over_is_said_and_restricts() -> None:
    imported = read_emqx(FILE)
    assert imported.settings["gateways", "coap", "authentication"] == ["builtin"]
    said = "\n".join(imported.remarks)
    for word in (
        "gateway.coap.authentication: not taken over",
        "gateway.exproto.listeners.quic.default: left out: allowed are tcp, ssl, udp",
        "gateway.lwm2m: allowed are tables coap, exproto, mqttsn, stomp",
        "gateway.mqttsn.clientinfo_override.username = ${Packet.x}", "gateway.mqttsn.clientinfo_override.clientid = all",
        "gateway.exproto.handler.ssl_options.verify", "gateway.stomp.listeners.tcp.default.acceptors",
    ):  # fmt: skip
        assert word in said, said


def test_a_gateway_without_a_listener_is_not_enabled() -> None:
    imported = read_emqx('gateway.stomp { listeners.tcp.a { bind = 61613, mountpoint = "x/" } }\ngateway.coap { enable = false }')
    assert not any(path[-1] == "enable" for path in imported.settings)
    assert any("none of its listeners was taken over" in remark for remark in imported.remarks)
    assert load(None, None, [], {".".join(path): value for path, value in imported.settings.items()})
    imported = read_emqx("gateway.stomp { max_inflight = 0, listeners.tcp.a { bind = 61613, enable = false } }")
    assert imported.settings == {}
    assert [remark.partition(":")[0] for remark in imported.remarks] == [
        "gateway.stomp.max_inflight = 0", "gateway.stomp.listeners.tcp.a", "gateway.stomp"
    ]  # fmt: skip
    assert read_emqx("gateway = 7").remarks == ["gateway = 7: must be a table"]
