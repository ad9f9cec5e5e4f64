"""Servers of back ends, by port; see tests/servers."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers import mysql
from tests.servers import postgresql as postgresql_server
from tests.servers.processes import answers, folder, quietly, running

__all__ = ["mariadb", "postgresql", "slapd"]


@contextmanager
def postgresql(sql: str) -> Iterator[int]:
    with postgresql_server.postgresql(sql) as server:
        yield server.port


@contextmanager
def mariadb(sql: str, *more: str) -> Iterator[int]:
    """`more`: options of the server."""
    with mysql.mariadb(sql, *more) as server:
        yield server.port


@contextmanager
def slapd(ldif: str, more: str = "", scheme: str = "ldap") -> Iterator[int]:
    """more: lines of the configuration. scheme: ldaps for TLS."""
    with folder() as where:
        port = free_port()
        (where / "data").mkdir()
        schema = Path("/etc/ldap/schema")
        includes = "".join(f"include {schema / name}.schema\n" for name in ("core", "cosine", "inetorgperson"))
        (where / "slapd.conf").write_text(f"""{includes}
pidfile {where}/slapd.pid
{more}
modulepath /usr/lib/ldap
moduleload back_mdb
attributetype ( 1.3.6.1.4.1.99999.1 NAME 'isSuperuser' EQUALITY booleanMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.7 SINGLE-VALUE )
objectclass ( 1.3.6.1.4.1.99999.2 NAME 'mqttUser' SUP top AUXILIARY MAY isSuperuser )
access to attrs=userPassword by dn="cn=admin,dc=example,dc=org" read by anonymous auth by * none
access to * by dn="cn=admin,dc=example,dc=org" read by * none
database mdb
suffix "dc=example,dc=org"
rootdn "cn=admin,dc=example,dc=org"
rootpw dbsecret
directory {where}/data
""")
        (where / "users.ldif").write_text(ldif)
        if os.geteuid() == 0:
            shutil.chown(where / "data", "nobody")
        quietly([needed("slapadd"), "-f", str(where / "slapd.conf"), "-l", str(where / "users.ldif")])
        command = [needed("slapd"), "-d", "0", "-f", str(where / "slapd.conf"), "-h", f"{scheme}://127.0.0.1:{port}"]
        with running(command, lambda: answers(port), where):
            yield port
