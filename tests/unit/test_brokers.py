"""What brokers are told: on disk before it is acknowledged, heard by this machine alone, nothing for those without a key."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from moorage.cli.commands.bus import config
from moorage.cli.state_dir import StateDirectory
from moorage.cli.up import brokers, command
from moorage.cli.up.credentials import Credentials, public_key
from moorage.cli.up.launch import Options
from moorage.gateway import worker as gateway
from moorage.mesh.discovery import installed


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
    for listen in (brokers.listen, gateway.listener_of):
        with listen(":0") as sock:
            assert sock.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("what", ["nats_conf", "redis_conf", "secrets"])
def test_what_holds_keys_is_read_by_its_owner_alone(state: StateDirectory, what: str) -> None:
    secrets = Credentials.open(state, installed().users)
    brokers.write_nats_conf(state, "127.0.0.1:4222", secrets, installed())
    brokers.write_redis_conf(state, 6379, secrets)
    assert getattr(state, what).stat().st_mode & 0o777 == 0o600
