"""Exports and imports while the broker runs: what a file holds, what an import changes, and hostile files."""

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from shardbroker.management import exports
from tests.api.rest import RULE, ApiBroker, Rest, asked
from tests.harness import Client, Publish

pytestmark = pytest.mark.own_broker
SETTINGS = {"acl.no_match": "allow", "acl.sources": '["builtin"]'}
PASSWORD = "correct horse battery"
HTTP = {"type": "http", "name": "main", "url": "http://127.0.0.1:1", "headers": {"authorization": "Bearer s3cret"}}


@pytest.fixture(scope="module")
def source() -> Iterator[ApiBroker]:
    """Has something of everything."""
    with ApiBroker(2, {**SETTINGS, "auth.chain": '["builtin"]'}) as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[ApiBroker]:
    with ApiBroker(2, {**SETTINGS, "auth.chain": '["builtin"]'}) as broker:
        yield broker


@pytest.fixture(scope="module")
def rest(target: ApiBroker) -> Rest:
    """By a key: an import changes the password of admin."""
    made = Rest.logged_in(target).good("POST", "/api_key", {"name": "tester"})
    return Rest.with_key(target, made["api_key"], made["api_secret"])


@pytest.fixture(scope="module")
def full(source: ApiBroker) -> Rest:
    rest = Rest.logged_in(source)
    users = "/authentication/password_based:built_in_database/users"
    for number in range(3):
        rest.good("POST", "/banned", {"as": "clientid", "who": f"bad{number}", "reason": "test"})
    rest.good("POST", users, {"user_id": "ada", "password": PASSWORD, "is_superuser": True})
    with Control(source.data_dir) as control:
        control.call("users add", name="scram-ada", password=PASSWORD, scram=True)
    rules = "/authorization/sources/built_in_database/rules"
    rest.good("POST", f"{rules}/users", [{"username": "ada", "rules": [{"topic": "no/#", "permission": "deny", "action": "all"}]}])
    rest.good("POST", "/users", {"username": "second", "password": PASSWORD, "role": "viewer"})
    rest.good("POST", "/api_key", {"name": "robot", "desc": "x"})
    rest.good("PUT", "/configs/mqtt", {"max_inflight": 17})
    rewritten = {"action": "all", "source_topic": "old/#", "re": "^old/(.+)$", "dest_topic": "new/$1"}
    rest.good("PUT", "/mqtt/topic_rewrite", [rewritten])
    rest.good("POST", "/connectors", HTTP)
    rest.good("POST", "/actions", {"type": "http", "name": "first", "connector": "main", "fallback_actions": []})
    rest.good("POST", "/actions", {"type": "http", "name": "before", "connector": "main", "fallback_actions": ["http:first"]})
    rest.good("POST", "/rules", {**RULE, "actions": [*RULE["actions"], "http:first"]})
    rest.good("POST", "/message_streams/streams", {"name": "kept", "topic_filter": "kept/#"})
    with Client(source.address, 5, "publisher", username="ada", password=PASSWORD.encode()) as client:
        client.publish("retained/one", b"\x00binary", 1, retain=True, properties={"content_type": "x/y"})
        client.publish("retained/two", b"two", 1, retain=True)
    return rest


def headers(rest: Rest) -> dict[str, str]:
    return {"Authorization": rest.authorization}


def download(rest: Rest, name: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", rest.port, timeout=30)
    try:
        connection.request("GET", f"/api/v5/data/files/{name}", headers=headers(rest))
        answer = connection.getresponse()
        asked.add(("GET", f"/api/v5/data/files/{name}"))
        return answer.status, answer.read()
    finally:
        connection.close()


def upload(rest: Rest, name: str, content: bytes, field: str = "filename") -> tuple[int, dict[str, Any]]:
    head = f'--limit\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\nContent-Type: application/gzip\r\n\r\n'
    body = head.encode() + content + b"\r\n--limit--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", rest.port, timeout=60)
    try:
        form = {"Content-Type": "multipart/form-data; boundary=limit"}
        connection.request("POST", "/api/v5/data/files", body, headers(rest) | form)
        answer = connection.getresponse()
        text = answer.read()
        asked.add(("POST", "/api/v5/data/files"))
        return answer.status, json.loads(text) if text else {}
    finally:
        connection.close()


def members(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def entries(content: bytes, part: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in members(content)[f"{part}.jsonl"].splitlines()]


def packed(parts: dict[str, list[Any]], **changes: Any) -> bytes:
    """A file as an export writes it, with other contents."""
    lines = {name: b"".join(json.dumps(one).encode() + b"\n" for one in found) for name, found in parts.items()}
    about = {
        name: {"entries": len(parts[name]), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in lines.items()
    }
    manifest = {"kind": "shardbroker-export", "format": 1, "version": "1", "node": "n", "created_at": 1, "parts": about, **changes}
    plain = [("manifest.json", json.dumps(manifest).encode()), *((f"{name}.jsonl", data) for name, data in lines.items())]
    return tarred([(member(name), data) for name, data in plain])


def member(name: str, **changes: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def tarred(found: list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz", format=format) as tar:
        for about, data in found:
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return raw.getvalue()


def directory(broker: ApiBroker) -> Path:
    return broker.data_dir / "exports"


def test_what_was_made_on_one_broker_is_on_another_one(source: ApiBroker, target: ApiBroker, full: Rest, rest: Rest) -> None:
    made = full.good("POST", "/data/export")
    assert made["node"] and made["created_at_sec"] > 0 and made["left_out"] == {} and made["parts"]["users"] == 1
    path = directory(source) / made["filename"]
    assert path.stat().st_mode & 0o777 == 0o600 and directory(source).stat().st_mode & 0o777 == 0o700
    rows = full.good("GET", "/data/files")
    assert [row["filename"] for row in rows["data"]] == [made["filename"]] and rows["data"][0]["size"] == path.stat().st_size
    status, content = download(full, made["filename"])
    assert status == 200 and content == path.read_bytes()
    manifest = json.loads(members(content)["manifest.json"])
    assert manifest["format"] == 1 and manifest["version"] and manifest["node"] == made["node"]
    for name, about in manifest["parts"].items():
        assert hashlib.sha256(members(content)[f"{name}.jsonl"]).hexdigest() == about["sha256"]
    assert b"$argon2" in members(content)["users.jsonl"] and PASSWORD.encode() not in b"".join(members(content).values())

    rest.good("POST", "/banned", {"as": "clientid", "who": "stays"})
    rest.good("POST", "/rules", {**RULE, "sql": 'SELECT * FROM "else"'})
    with Client(target.address, 5, "watcher", username="nobody", connect=False) as refused:
        assert refused.connect(None).code != 0
    assert upload(rest, "from-source.tar.gz", content) == (204, {})
    done = rest.good("POST", "/data/import", {"filename": "from-source.tar.gz"})
    assert done["db_errors"] == {} and done["config_errors"] == {}, done
    assert done["parts"]["banned"]["imported"] == 3 and done["parts"]["actions"]["imported"] == 2
    assert rest.good("GET", "/configs/mqtt")["max_inflight"] == 17
    assert rest.good("GET", "/mqtt/topic_rewrite")[0]["dest_topic"] == "new/$1"
    assert {one["who"] for one in rest.good("GET", "/banned")["data"]} == {"bad0", "bad1", "bad2", "stays"}
    assert rest.good("GET", "/rules/hot")["sql"] == RULE["sql"]
    assert rest.good("GET", "/message_streams/streams/kept")["topic_filter"] == "kept/#"
    assert {one["username"] for one in rest.good("GET", "/users")} == {"admin", "second"}
    assert [one["name"] for one in rest.good("GET", "/api_key")] == ["robot", "tester"]
    assert members((directory(target) / "from-source.tar.gz").read_bytes()) == members(content)
    with Client(target.address, 5, "reader", username="ada", password=PASSWORD.encode()) as client:
        client.subscribe("retained/#", 1)
        found = {one.topic: one for one in (client.expect(Publish), client.expect(Publish))}
        assert found["retained/one"].payload == b"\x00binary" and found["retained/one"].properties["content_type"] == "x/y"
    verbs = {row["operation_name"] for row in rest.good("GET", "/audit", limit=200)["data"]}
    assert {"data upload", "data import", "connectors add", "rules update", "streams add", "config update"} <= verbs

    again = rest.good("POST", "/data/import", {"filename": "from-source.tar.gz"})
    assert again["parts"]["rules"] == {"imported": 0, "unchanged": 1, "failed": 0}
    assert again["parts"]["settings"]["imported"] == 0
    second = rest.good("POST", "/data/export", {"parts": ["connectors", "rules"]})
    own = download(rest, second["filename"])[1]
    assert entries(own, "connectors") == entries(content, "connectors") and entries(own, "rules") == entries(content, "rules")
    assert {*members(own)} == {"manifest.json", "connectors.jsonl", "rules.jsonl"}
    rest.good("DELETE", f"/data/files/{second['filename']}")
    assert rest.refused("GET", f"/data/files/{second['filename']}") == (404, "NOT_FOUND")


def test_entries_that_do_not_fit_are_named_and_others_are_imported(rest: Rest) -> None:
    connector = {"id": "http:good", "definition": {"url": "http://127.0.0.1:1"}}
    settings = [
        {"path": ["nothing", "known"], "value": "1"},
        {"path": ["mqtt", "max_inflight"], "value": "19"}, {"path": ["process", "workers"], "value": "3"},
        {"path": ["sys", "heartbeat_nonsense"], "value": "1"},
    ]  # fmt: skip
    ended = {"kind": "clientid", "value": "over", "until": 1, "by": "", "reason": "", "at": 0}
    parts = {
        "settings": settings,
        "banned": [ended],
        "connectors": [connector, {"id": "nonsense:x", "definition": {}}],
        "retained": [shown("r/good", b"x"), shown("r/large", b"x" * (2 << 20))],
    }
    assert upload(rest, "partly.tar.gz", packed(parts))[0] == 204
    status, done = rest("POST", "/data/import", {"filename": "partly.tar.gz"})
    assert status == 400 and done["code"] == "BAD_REQUEST" and "nonsense:x" in done["message"]
    assert done["parts"]["connectors"] == {"imported": 1, "unchanged": 0, "failed": 1}
    assert [*done["config_errors"]["connectors"]] == ["nonsense:x"]
    assert {*done["config_errors"]["settings"]} == {"nothing.known", "sys.heartbeat_nonsense"}
    assert "process.workers" in done["skipped"]["settings"]
    assert "max_payload_size" in done["db_errors"]["retained"]["r/large"]
    assert done["skipped"]["banned"] == {"clientid:over": "has ended"}
    assert rest.good("GET", "/configs/mqtt")["max_inflight"] == 19
    assert rest.good("GET", "/connectors/http:good")["url"] == "http://127.0.0.1:1"
    assert rest.good("GET", "/mqtt/retainer/message/r%2Fgood")["topic"] == "r/good"


def shown(topic: str, payload: bytes) -> dict[str, Any]:
    text = base64.b64encode(payload).decode()
    return {
        "topic": topic, "payload": text, "qos": 1, "properties": "", "publish_at": 1, "expires_at": 0, "from_clientid": "c",
    }  # fmt: skip


def test_nothing_changes_if_an_entry_is_no_entry(target: ApiBroker, rest: Rest) -> None:
    good = {"kind": "clientid", "value": "never", "until": None, "by": "", "reason": "", "at": 0}
    for part, wrong in (
        ("banned", {**good, "kind": "everything"}), ("banned", {**good, "more": 1}), ("banned", [1]), ("users", {}),
        ("users", {"kind": "username", "name": "x", "hash": 5, "superuser": True, "salt": ""}),
        ("connectors", {"id": "x", "definition": {}}),
        ("rules", {"id": "x", "sql": "y"}),
        ("settings", {"path": "mqtt", "value": "1"}),
        ("settings", {"path": ["a"], "value": "]"}),
        ("retained", {**shown("a/+", b"x")}), ("retained", {**shown("$SYS/x", b"x")}),
        ("retained", {**shown("a", b"x"), "properties": "!"}),
        ("retained", {**shown("a", b"x"), "properties": base64.b64encode(b"\xff" * 9).decode()}), ("accounts", {"name": "a/b"}),
        ("api_keys", {"name": "x", "key": "0"}), ("streams", {"name": "x", "colour": 1}),
    ):  # fmt: skip
        parts = {"banned": [good]} if part != "banned" else {}
        status, done = upload(rest, "wrong.tar.gz", packed({**parts, part: [*([good] if part == "banned" else []), wrong]}))
        assert status == 400 and done["code"] == "BAD_REQUEST" and part in done["message"], (part, wrong, done)
    assert "never" not in {one["who"] for one in rest.good("GET", "/banned")["data"]}
    assert not [name for name in os.listdir(directory(target)) if name.startswith("wrong")]


def bomb(size: int) -> bytes:
    """A member of zeros that announces its size."""
    header = member("manifest.json", size=size).tobuf(tarfile.USTAR_FORMAT)
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return raw.getvalue()


def hostile() -> Iterator[tuple[str, bytes]]:
    good = json.loads(members(packed({"banned": []}))["manifest.json"])
    text = json.dumps(good).encode()
    first = (member("manifest.json"), text)
    yield "nothing", b"x"
    yield "no archive", gzip.compress(b"x" * 2000)
    yield "cut off", packed({"banned": [{"kind": "clientid"}] * 100})[:-40]
    yield "without manifest", tarred([(member("banned.jsonl"), b"")])
    yield "another format", packed({}, format=2)
    yield "another product", tarred([(member("META.hocon"), b'version = "5.8.0"')])
    yield "absolute", tarred([first, (member("/etc/passwd"), b"")])
    yield "above", tarred([first, (member("../../x"), b"")])
    yield "link", tarred([first, (member("banned.jsonl", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")])
    yield "hard link", tarred([first, (member("banned.jsonl", type=tarfile.LNKTYPE, linkname="/etc/passwd"), b"")])
    yield "device", tarred([first, (member("banned.jsonl", type=tarfile.CHRTYPE), b"")])
    yield "directory", tarred([first, (member("banned.jsonl", type=tarfile.DIRTYPE), b"")])
    yield "long name", tarred([first, (member("x" * 300), b"")], tarfile.GNU_FORMAT)
    yield "extended header", tarred([(member("manifest.json", pax_headers={"a": "b" * 5000}), text)], tarfile.PAX_FORMAT)
    yield "unknown part", packed({"passwords": []})
    yield "member twice", tarred([first, (member("banned.jsonl"), b""), (member("banned.jsonl"), b"")])
    yield "many members", tarred([first, (member("banned.jsonl"), b""), *((member(f"{number}"), b"") for number in range(2000))])
    yield "large manifest", bomb(1 << 22)
    sizes = {"banned": {"entries": 1, "bytes": 1 << 40, "sha256": "0"}}
    yield "announced size", tarred([(member("manifest.json"), json.dumps({**good, "parts": sizes}).encode())])
    yield "damaged", tarred([(member("manifest.json"), text), (member("banned.jsonl"), b"{}\n")])
    yield "deep", tarred([(member("manifest.json"), b"[" * 30_000)])


HOSTILE = [*hostile()]


@pytest.mark.parametrize(("what", "content"), HOSTILE, ids=[name for name, _ in HOSTILE])
def test_a_hostile_file_is_refused_and_not_kept(target: ApiBroker, rest: Rest, what: str, content: bytes) -> None:
    status, answer = upload(rest, "hostile.tar.gz", content)
    assert status == 400 and answer["code"] == "BAD_REQUEST" and answer["message"].startswith("file: "), answer
    assert not [name for name in os.listdir(directory(target)) if name.startswith("hostile")]


def test_a_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    files = exports.ExportFiles(tmp_path)
    files.prepare()
    size = (exports.UNPACKED_MAX >> 20) + 1 << 20
    content = io.BytesIO()
    about = {"banned": {"bytes": exports.UNPACKED_MAX, "sha256": "0"}}
    found = {"kind": "shardbroker-export", "format": 1, "version": "1", "node": "n", "created_at": 1, "parts": about}
    text = json.dumps(found).encode()
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1) as file:
        file.write(member("manifest.json", size=len(text)).tobuf(tarfile.USTAR_FORMAT) + text + bytes(-len(text) % 512))
        file.write(member("banned.jsonl", size=exports.UNPACKED_MAX).tobuf(tarfile.USTAR_FORMAT))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    assert len(content.getvalue()) < size // 100
    (files.directory / "bomb.tar.gz").write_bytes(content.getvalue())
    with pytest.raises(exports.ControlError, match=f"at most {exports.UNPACKED_MAX} bytes when it is unpacked"):
        files.open("bomb.tar.gz")
    assert os.listdir(files.directory) == ["bomb.tar.gz"]


def test_names_lead_nowhere_else(target: ApiBroker, rest: Rest) -> None:
    (target.data_dir / "outside.tar.gz").write_bytes(packed({}))
    link = directory(target) / "link.tar.gz"
    link.symlink_to(target.data_dir / "outside.tar.gz")
    os.mkfifo(directory(target) / "pipe.tar.gz")
    try:
        assert "link.tar.gz" not in {row["filename"] for row in rest.good("GET", "/data/files")["data"]}
        for name in ("link.tar.gz", "pipe.tar.gz"):
            for method, path, body in (
                ("GET", f"/data/files/{name}", None), ("DELETE", f"/data/files/{name}", None),
                ("POST", "/data/import", {"filename": name}),
            ):  # fmt: skip
                assert rest.refused(method, path, body) == (404, "NOT_FOUND")
        assert link.is_symlink()
        for name in ("..%2Foutside.tar.gz", "%2Fetc%2Fpasswd", ".hidden.tar.gz", "x.txt", "a" * 200 + ".tar.gz"):
            assert rest("GET", f"/data/files/{name}")[0] in (400, 404), name
            assert rest("DELETE", f"/data/files/{name}")[0] in (400, 404), name
        for name in ("../outside.tar.gz", "/etc/passwd", "runtime.toml", "..", ""):
            assert rest.refused("POST", "/data/import", {"filename": name})[0] == 400
            assert upload(rest, name, packed({}))[0] == 400
        assert upload(rest, "link.tar.gz", packed({}))[0] == 409
    finally:
        link.unlink()
        (directory(target) / "pipe.tar.gz").unlink()
    assert (target.data_dir / "outside.tar.gz").exists()


def test_uploads_are_bounded(target: ApiBroker, rest: Rest) -> None:
    assert upload(rest, "x.tar.gz", packed({}), "file")[0] == 400
    assert rest.refused("POST", "/data/files", {"filename": "x.tar.gz"})[0] == 400
    with Control(target.data_dir) as control:
        for params in (
            {"payload": b"x", "size": 1 << 40}, {"payload": b"", "size": 5}, {"payload": b"xx", "size": 1},
            {"payload": b"x", "position": 3, "size": 5}, {"payload": bytes((4 << 20) + 1), "size": 5 << 20},
        ):  # fmt: skip
            with pytest.raises(exports.ControlError) as refused:
                control.call("data upload", filename="part.tar.gz", **params)
            assert refused.value.code == "BAD_REQUEST"
        control.call("data upload", filename="part.tar.gz", payload=b"x", position=0, size=5)
        with pytest.raises(exports.ControlError, match="must be 1, where the upload"):
            control.call("data upload", filename="part.tar.gz", payload=b"x", position=2, size=5)
    assert "part.tar.gz" not in {row["filename"] for row in rest.good("GET", "/data/files")["data"]}
    for number in range(exports.FILES_MAX):
        (directory(target) / f"filler-{number}.tar.gz").touch()
    try:
        assert rest.refused("POST", "/data/export") == (400, "EXCEED_LIMIT")
        assert upload(rest, "one-more.tar.gz", packed({}))[1]["code"] == "EXCEED_LIMIT"
    finally:
        for number in range(exports.FILES_MAX):
            (directory(target) / f"filler-{number}.tar.gz").unlink()
    with (directory(target) / "sparse.tar.gz").open("wb") as file:
        file.truncate(exports.TOTAL_BYTES_MAX)
    try:
        assert rest.refused("POST", "/data/export") == (400, "EXCEED_LIMIT")
    finally:
        (directory(target) / "sparse.tar.gz").unlink()


def test_what_was_left_unfinished_is_removed(tmp_path: Path) -> None:
    files = exports.ExportFiles(tmp_path)
    files.prepare()
    for name in ("old.tar.gz.part", "new.tar.gz.part", "killed.tar.gz.new", "kept.tar.gz"):
        (files.directory / name).touch()
        if not name.startswith("new"):
            os.utime(files.directory / name, (1, 1))
    files.prepare()
    assert {*os.listdir(files.directory)} == {"new.tar.gz.part", "kept.tar.gz"}


def test_a_body_without_end_is_cut_off(rest: Rest) -> None:
    """The limit of uploads holds for uploads only."""
    body = json.dumps({"filename": "x" * (17 << 20)}).encode()
    assert rest.refused("POST", "/data/import", body) == (413, "PAYLOAD_TOO_LARGE")


def test_viewers_see_names_and_no_hashes(target: ApiBroker, rest: Rest) -> None:
    name = rest.good("POST", "/data/export", {"parts": ["settings"]})["filename"]
    rest.good("POST", "/users", {"username": "looker", "password": PASSWORD, "role": "viewer"})
    viewer = Rest.logged_in(target, "looker", PASSWORD)
    assert name in {row["filename"] for row in viewer.good("GET", "/data/files")["data"]}
    assert viewer.refused("GET", f"/data/files/{name}") == (403, "FORBIDDEN")
    for method, path, body in (
        ("POST", "/data/export", {}), ("POST", "/data/import", {"filename": name}), ("DELETE", f"/data/files/{name}", None),
    ):  # fmt: skip
        assert viewer.refused(method, path, body) == (403, "FORBIDDEN")
    assert upload(viewer, "x.tar.gz", packed({}))[0] == 403
    assert Rest(target.api_port).refused("GET", f"/data/files/{name}") == (401, "UNAUTHORIZED")
    rest.good("DELETE", f"/data/files/{name}")


def test_the_last_administrator_stays_one(rest: Rest) -> None:
    hashed = "$argon2id$v=19$m=19456,t=2,p=1$YWFhYWFhYWE$YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE"
    account = {"name": "admin", "hash": hashed, "role": "viewer", "description": ""}
    assert upload(rest, "demotes.tar.gz", packed({"accounts": [account]}))[0] == 204
    status, done = rest("POST", "/data/import", {"filename": "demotes.tar.gz"})
    assert status == 400 and "last administrator" in done["db_errors"]["accounts"]["admin"]
    assert {one["username"]: one["role"] for one in rest.good("GET", "/users")}["admin"] == "administrator"


def ctl(broker: ApiBroker, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "shardbroker.cli.main", "ctl", "--data-dir", str(broker.data_dir), "data", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_the_command_line(source: ApiBroker, target: ApiBroker, full: Rest, tmp_path: Path) -> None:
    out = tmp_path / "made.tar.gz"
    before = ctl(source, "list", "--json")[1]
    code, text = ctl(source, "export", "--out", str(out))
    assert code == 0, text
    assert out.stat().st_mode & 0o777 == 0o600 and ctl(source, "list", "--json")[1] == before
    code, text = ctl(target, "import", str(out))
    assert code == 0 and "retained" in text, text
    assert not [row for row in os.listdir(directory(target)) if row.startswith("ctl-")]
    code, text = ctl(target, "export", "--json", "--parts", "banned")
    name = json.loads(text)["filename"]
    assert code == 0 and name in ctl(target, "list")[1]
    assert ctl(target, "import", name)[0] == 0
    assert ctl(target, "delete", name)[0] == 0 and name not in ctl(target, "list")[1]
    assert ctl(target, "import", name)[0] == 1
    out.write_bytes(b"nothing")
    code, text = ctl(target, "import", str(out))
    assert code == 1 and "BAD_REQUEST: file: " in text, text


def test_many_entries_are_read_in_pages(source: ApiBroker, full: Rest) -> None:
    with Control(source.data_dir) as control:
        for number in range(1100):
            control.call("acl add", kind="clientid", name=f"many{number}", topic="x")
    name = full.good("POST", "/data/export", {"parts": ["acl"]})["filename"]
    found = {one["name"] for one in entries(download(full, name)[1], "acl")}
    assert found == {"ada", *(f"many{number}" for number in range(1100))}
    full.good("DELETE", f"/data/files/{name}")
