"""TLS towards real servers that ask for a client certificate, and what is said where it is not as it must be."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from shardbroker.config import connectors as keys
from shardbroker.connectors.connector import Connector
from shardbroker.connectors.errors import ConnectionSettingError, describe
from shardbroker.connectors.server import context_of
from tests.access import servers
from tests.edge.certificates import Authority
from tests.harness.broker import free_port
from tests.harness.needed import needed, needed_module
from tests.servers.mysql import mariadb
from tests.servers.postgresql import postgresql
from tests.servers.processes import answers, folder, running

HOSTS = ("localhost", socket.gethostname(), socket.getfqdn())
"""Of the server: libldap takes the name of the machine for localhost."""


@dataclass
class Files:
    """ca: signs the server's certificate and the client's. other: signs neither."""

    ca: Path
    other: Path
    server: Path
    client: Path
    certificate: Path
    key: Path


@contextmanager
def files() -> Iterator[Files]:
    with folder() as where:
        ours, other = Authority(where, "ours"), Authority(where, "other")
        server, client = ours.issue("server", "server", HOSTS), ours.issue("client", "mqtt")
        text = client.read_text()
        begin = text.index("-----BEGIN PRIVATE KEY")
        certificate, key = where / "certificate.pem", where / "key.pem"
        certificate.write_text(text[:begin])
        key.write_text(text[begin:])
        for file in where.iterdir():
            file.chmod(0o644)
        server.chmod(0o600)
        if os.geteuid() == 0:
            shutil.chown(server, "nobody")
        yield Files(ours.cafile, other.cafile, server, client, certificate, key)


@contextmanager
def of_postgresql(found: Files) -> Iterator[int]:
    options = ["ssl=on", f"ssl_ca_file={found.ca}", f"ssl_cert_file={found.server}", f"ssl_key_file={found.server}"]
    with postgresql("", *options, access="hostssl all all 127.0.0.1/32 cert") as server:
        yield server.port


@contextmanager
def of_mysql(found: Files) -> Iterator[int]:
    options = [f"--ssl-ca={found.ca}", f"--ssl-cert={found.server}", f"--ssl-key={found.server}"]
    with mariadb("ALTER USER mqtt@'%' REQUIRE X509", *options) as server:
        yield server.port


@contextmanager
def of_redis(found: Files) -> Iterator[int]:
    with folder() as where:
        port = free_port()
        tls = ["--tls-ca-cert-file", str(found.ca), "--tls-cert-file", str(found.server), "--tls-key-file", str(found.server)]
        command = [needed("redis-server"), "--port", "0", "--tls-port", str(port), "--bind", "127.0.0.1", "--save", "", *tls]
        with running(command, lambda: answers(port), where):
            yield port


@contextmanager
def of_ldap(found: Files) -> Iterator[int]:
    needed_module("bonsai")
    files = {"CACertificateFile": found.ca, "CertificateFile": found.server, "CertificateKeyFile": found.server}
    more = "".join(f"TLS{name} {path}\n" for name, path in files.items()) + "TLSVerifyClient demand\n"
    with servers.slapd("dn: dc=example,dc=org\nobjectClass: domain\ndc: example\n", more, "ldaps") as port:
        yield port


@contextmanager
def of_http(found: Files) -> Iterator[int]:
    yield 0  # it runs in the loop of the client


async def _web_server(found: Files) -> tuple[web.AppRunner, int]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="served")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(found.ca))
    context.load_cert_chain(found.server)
    context.verify_mode = ssl.CERT_REQUIRED
    port = free_port()
    await web.TCPSite(runner, "localhost", port, ssl_context=context).start()
    return runner, port


def connector_of(kind: str, port: int, **tls: Any) -> Connector[Any]:
    if kind == "http":
        from shardbroker.connectors.http import Http

        return Http(keys.HttpConnection(url=f"https://localhost:{port}/", timeout=5, **tls), "k")
    common: dict[str, Any] = {"server": f"localhost:{port}", "timeout": 5, "tls": True, **tls}
    if kind == "redis":
        from shardbroker.connectors.redis import Redis

        return Redis(keys.RedisConnection(**common), "k")
    if kind == "mysql":
        from shardbroker.connectors.mysql import Mysql

        return Mysql(keys.MysqlConnection(username="mqtt", password="dbsecret", **common), "k")
    if kind == "ldap":
        from shardbroker.connectors.ldap import Ldap

        return Ldap(keys.LdapConnection(username="cn=admin,dc=example,dc=org", password="dbsecret", **common), "k")
    from shardbroker.connectors.postgresql import Postgresql

    return Postgresql(keys.PostgresqlConnection(username="mqtt", **common), "k")


async def _used(kind: str, connector: Connector[Any]) -> str:
    """Returns the error of a request, or an empty text."""
    try:
        async with connector.connection() as lent:
            if kind == "http":
                async with lent.get(connector.settings.url) as answer:  # type: ignore[attr-defined]
                    assert await answer.text() == "served"
            else:
                await connector._ping(lent)
    except Exception as error:
        return describe(error)
    finally:
        await connector.close()
    return ""


SERVERS = {"postgresql": of_postgresql, "mysql": of_mysql, "redis": of_redis, "ldap": of_ldap, "http": of_http}


@pytest.mark.parametrize("kind", SERVERS)
def test_servers_that_ask_for_a_certificate(kind: str) -> None:
    async def scenario(found: Files, port: int) -> None:
        runner = None
        if kind == "http":
            runner, port = await _web_server(found)
        own = {"tls_cert": str(found.client)}
        apart = {"tls_cert": str(found.certificate), "tls_key": str(found.key)}
        for tls in ({"tls_ca": str(found.ca), **own}, {"tls_ca": str(found.ca), **apart}, {**own, "tls_verify": False}):
            assert await _used(kind, connector_of(kind, port, **tls)) == "", tls
        assert await _used(kind, connector_of(kind, port, tls_ca=str(found.ca))), "no certificate of the client"
        for tls in ({"tls_ca": str(found.other), **own}, own):
            said = await _used(kind, connector_of(kind, port, **tls))
            assert "certificate" in said or (kind in ("redis", "ldap") and said), said
        if runner is not None:
            await runner.cleanup()

    with files() as found, SERVERS[kind](found) as port, asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(scenario(found, port))


def test_files_that_cannot_be_used_name_their_key(tmp_path: Path) -> None:
    def said(**tls: Any) -> str:
        with pytest.raises(ConnectionSettingError) as caught:
            context_of(keys.Connection(tls=True, **tls), "k")
        return str(caught.value)

    with files() as found:
        encrypted = tmp_path / "encrypted.pem"
        needed("openssl")
        subprocess.run(["openssl", "pkey", "-in", found.key, "-aes256", "-passout", "pass:secret", "-out", encrypted], check=True)
        assert said(tls_cert="/none") == "k.tls_cert: must be a PEM file, got '/none': No such file or directory"
        own = str(found.certificate)
        assert said(tls_cert=own, tls_key="/none") == "k.tls_key: must be a PEM file, got '/none': No such file or directory"
        text = "k.tls_cert: must be a PEM file of a certificate, as there is tls_key, got ''"
        assert said(tls_key=str(found.key)) == text
        for key in ("", str(encrypted), str(found.server)):
            text = said(tls_cert=own, tls_key=key)
            assert text.startswith("k.tls_cert: must be a PEM file of a certificate, with its private key in it"), text
        assert said(tls_ca=str(found.key)).startswith("k.tls_ca: must be a PEM file of CA certificates")
