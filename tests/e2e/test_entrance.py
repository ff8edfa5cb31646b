"""Tests TLS with a certificate that is renewed while the gateway runs, and limits that apply to one caller alone."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from moorage_testkit.mesh import Mesh

#: Rates so low that even a slow machine exceeds them.
CONNECTIONS, RATE, FAILURES, STREAMS = 40, 1, 0.5, 3
MANY = 20


def certify(directory: Path, name: str) -> tuple[Path, Path]:
    chain, key = directory / f"{name}.pem", directory / f"{name}.key"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    subject = ["-subj", f"/CN={name}", "-addext", names, "-addext", "basicConstraints=critical,CA:TRUE"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*command, "-keyout", key, "-out", chain, "-days", "2", *subject], check=True, capture_output=True)
    return chain, key


class Guarded:
    def __init__(self, mesh: Mesh, chain: Path, key: Path, trusted: Path) -> None:
        self.mesh, self.chain, self.key, self.trusted = mesh, chain, key, trusted
        address = urlsplit(mesh.endpoint["http"])
        self.host, self.port = address.hostname or "", address.port or 0

    def ask(self, path: str, token: str = "", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        conn = self.connect()
        try:
            bearer = {"Authorization": f"Bearer {token or self.mesh.endpoint['token']}"}
            conn.request("GET", path, headers=bearer | headers)
            reply = conn.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            conn.close()

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.trusted))
        return http.client.HTTPSConnection(self.host, self.port, timeout=60, context=context)

    def served(self) -> str:
        """Returns the name in the certificate that a new connection gets."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        with (
            socket.create_connection((self.host, self.port), 60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            subject = (secure.getpeercert() or {})["subject"]
            return str(dict(pair for part in subject for pair in part)["commonName"])  # type: ignore[misc]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("tls")
    pairs = [certify(directory, name) for name in ("first", "second")]
    trusted = directory / "trusted.pem"
    trusted.write_bytes(b"".join(chain.read_bytes() for chain, _ in pairs))
    chain, key = directory / "served.pem", directory / "served.key"
    chain.write_bytes(pairs[0][0].read_bytes())
    key.write_bytes(pairs[0][1].read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOORAGE_TLS_CERT", str(chain))
        patch.setenv("MOORAGE_TLS_KEY", str(key))
        patch.setenv("SSL_CERT_FILE", str(trusted))
        patch.setenv("MOORAGE_HTTP_CONNECTIONS", str(CONNECTIONS))
        patch.setenv("MOORAGE_HTTP_RATE", str(RATE))
        patch.setenv("MOORAGE_HTTP_FAILURES", str(FAILURES))
        patch.setenv("MOORAGE_HTTP_STREAMS", str(STREAMS))
        with Mesh() as mesh:
            yield Guarded(mesh, chain, key, trusted)


def replace(target: Path, data: bytes) -> None:
    fresh = target.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(target)


def test_commands_connect_with_tls(guarded: Guarded) -> None:
    assert guarded.mesh.endpoint["http"].startswith("https://127.0.0.1:")
    assert guarded.served() == "first"
    done = guarded.mesh.run("get", "groups", "-o", "json")
    assert done.returncode == 0, done.stderr
    with pytest.raises((http.client.HTTPException, OSError)):
        plain = http.client.HTTPConnection(guarded.host, guarded.port, timeout=5)
        plain.request("GET", "/livez")
        plain.getresponse()
    with pytest.raises(ssl.SSLError):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(str(guarded.trusted))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES128-SHA")
        with socket.create_connection((guarded.host, guarded.port), 5) as sock:
            context.wrap_socket(sock, server_hostname="127.0.0.1")


def test_a_renewed_certificate_is_served_without_a_restart(guarded: Guarded) -> None:
    before = guarded.mesh.pids("gateway")
    second = guarded.chain.parent / "second.pem", guarded.chain.parent / "second.key"
    replace(guarded.chain, second[0].read_bytes())  # the key does not match it yet
    time.sleep(2.5)  # longer than the check interval: nothing may change
    assert guarded.served() == "first" and guarded.ask("/livez")[0] == 200
    replace(guarded.key, second[1].read_bytes())
    end = time.monotonic() + 60
    while guarded.served() != "second":
        assert time.monotonic() < end, "the renewed certificate was never served"
    assert guarded.mesh.pids("gateway") == before


def test_the_rate_limit_applies_to_one_token(guarded: Guarded) -> None:
    made = guarded.mesh.http("/v1/tokens", {"name": "hasty"})["token"]
    statuses = [guarded.ask("/v1/whoami", made)[0] for _ in range(MANY)]
    assert set(statuses) == {200, 429} and statuses[0] == 200
    status, headers, body = guarded.ask("/v1/whoami", made)
    if status == 429:
        assert int(headers["Retry-After"]) >= 1
        assert msgspec.json.decode(body)["code"] == "TooManyRequests"
    assert {guarded.ask("/v1/whoami")[0] for _ in range(MANY)} == {200}


def test_failed_authentications_are_rate_limited(guarded: Guarded) -> None:
    answers = [guarded.ask("/v1/whoami", f"guess{n}") for n in range(MANY)]
    assert {status for status, _, _ in answers} == {401, 429}
    assert all(int(headers["Retry-After"]) >= 1 for status, headers, _ in answers if status == 429)
    assert guarded.ask("/v1/whoami")[0] == 200, "who is known is not held up by others"


def test_event_streams_are_limited(guarded: Guarded) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(STREAMS):
            conn = stack.enter_context(contextlib.closing(guarded.connect()))
            conn.request("GET", "/v1/events", headers={"Authorization": f"Bearer {guarded.mesh.endpoint['token']}"})
            assert conn.getresponse().readline().startswith(b":")
        assert guarded.ask("/v1/events")[0] == 429
        assert guarded.ask("/v1/groups")[0] == 200


def test_a_connection_above_the_limit_gets_503(guarded: Guarded) -> None:
    with contextlib.ExitStack() as stack:
        refused = 0
        for _ in range(CONNECTIONS + 5):
            conn = stack.enter_context(contextlib.closing(guarded.connect()))
            conn.request("GET", "/livez")
            reply = conn.getresponse()
            reply.read()
            refused += reply.status == 503 and reply.headers["Retry-After"] == "1"
        assert 5 <= refused <= 12, "the mesh itself may hold some"
    end = time.monotonic() + 60
    while guarded.ask("/livez")[0] != 200:
        assert time.monotonic() < end, "what was closed is free again"


def test_an_unreadable_certificate_fails_the_start(tmp_path: Path) -> None:
    broker = {"MOORAGE_NATS_URL": "nats://127.0.0.1:1", "MOORAGE_REDIS_URL": "redis://127.0.0.1:1"}
    env = {**os.environ, **broker, "MOORAGE_TOKEN": "t", "MOORAGE_TLS_CERT": str(tmp_path / "none.pem")}
    command = [sys.executable, "-m", "moorage.cli", "run", "gateway"]
    done = subprocess.run(command, env=env, capture_output=True, timeout=90, check=False)
    assert done.returncode != 0 and b"MOORAGE_TLS_CERT" in done.stderr + done.stdout


def test_a_setting_that_is_not_a_number_fails_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moorage.cli", "up", "--state", str(tmp_path), "--http", "127.0.0.1:0"]
    env = {**os.environ, "MOORAGE_HTTP_RATE": "fast"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    log = tmp_path / "logs" / "gateway.log"
    try:
        end = time.monotonic() + 60
        while not (log.exists() and "MOORAGE_HTTP_RATE must be a number, not 'fast'" in log.read_text()):
            assert time.monotonic() < end, "the log says why"
            time.sleep(0.05)
    finally:
        process.terminate()
        process.communicate(timeout=60)
