"""Tests probes while brokers stop and start, metrics, and log lines about the handled message."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import structlog

from moorage.bus import Bus, Incoming
from moorage.mesh.discovery import installed
from moorage.model.problems import Refused, not_found
from moorage.telemetry import HANDLED, ProcessHealth, configure, handling, listen, serve_health, tracing, url_of
from moorage.telemetry.health import CURRENT
from moorage_testkit.polling import until
from moorage_testkit.servers import NatsServer, RedisServer, free_port


def ready(port: int) -> tuple[int, str]:
    """Returns the status of the probe; 0: nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()
    except OSError:
        return 0, ""


@contextmanager
def running(worker: str, nats_url: str, redis_url: str) -> Iterator[int]:
    """Runs a worker as a process of its own, and yields the port of its probes."""
    port = free_port()
    env = os.environ | {
        "MOORAGE_NATS_URL": nats_url,
        "MOORAGE_REDIS_URL": redis_url,
        "MOORAGE_METRICS": f"127.0.0.1:{port}",
    }
    command = [sys.executable, "-m", "moorage.cli", "run", worker]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(60)


def becomes(port: int, wanted: tuple[int, str], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while (now := ready(port)) != wanted:
        assert time.monotonic() < end, f"{now} instead of {wanted}"
        time.sleep(0.05)


def test_readyz_names_what_is_missing(nats: NatsServer, redis: RedisServer) -> None:
    nobody = f"nats://127.0.0.1:{free_port()}"
    with running("merger", nobody, redis.url) as port:
        becomes(port, (503, "missing: NATS"))
    asyncio.run(_provision(nats))
    with running("merger", nats.url, redis.url) as merger:
        becomes(merger, (503, "missing: the fleet in Redis"))
        with running("inventory", nats.url, redis.url) as inventory:
            becomes(inventory, (200, "ok"))
            becomes(merger, (200, "ok"))
            redis.kill()
            becomes(inventory, (503, "missing: Redis"))
            becomes(merger, (503, "missing: the fleet in Redis"))
            redis.start()
            becomes(inventory, (200, "ok"))
            becomes(merger, (200, "ok"))
            nats.kill()
            becomes(merger, (503, "missing: NATS"))
            nats.start()
            becomes(merger, (200, "ok"))


async def _provision(nats: NatsServer) -> None:
    bus = await Bus.connect(nats.settings(), worker="admin")
    await bus.provision(installed().stores.values())
    await bus.close()


async def test_the_endpoint_serves_probes_and_metrics_only() -> None:
    process_health = ProcessHealth("merger")
    sock = listen("127.0.0.1:0")
    base = url_of(sock).removesuffix("/metrics")
    async with serve_health(process_health, sock):
        port = sock.getsockname()[1]
        assert await asyncio.to_thread(ready, port) == (503, "missing: NATS")
        process_health.waiting_for = "the log"
        assert await asyncio.to_thread(ready, port) == (503, "missing: the log")
        process_health.health = lambda: {"ok": False, "missing": ["the moon"]}
        assert await asyncio.to_thread(ready, port) == (503, "missing: NATS, the moon")
        process_health.connected = lambda: True
        process_health.health = dict
        assert await asyncio.to_thread(ready, port) == (200, "ok")
        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, base + "/secrets.json")
        assert refused.value.code == 404
        refused.value.close()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Configures logs like a worker's process, and restores them afterwards."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    root = logging.getLogger()
    handlers, level, process_health = root.handlers[:], root.level, CURRENT.get()
    before = structlog.get_config()
    configure("tester")
    yield err
    structlog.configure(**before)
    CURRENT.set(process_health)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(logged: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in logged.getvalue().splitlines()]


class Ping(msgspec.Struct):
    id: str
    cause: str
    fail: bool = False


async def test_log_lines_name_the_handled_message(logged: io.StringIO, bus: Bus) -> None:
    log = structlog.get_logger("tester")
    handled = asyncio.Event()

    async def handle(incoming: Incoming) -> bytes:
        message = msgspec.json.decode(incoming.data, type=Ping)
        await asyncio.sleep(0)
        log.info("at it", note=message.id)
        if message.fail:
            raise RuntimeError("nats://me:hunter2@host")
        return b"{}"

    def hint(_subject: str, _data: bytes) -> None:
        log.info("a hint")
        handled.set()

    await bus.serve("moorage.test.handle", handle)
    await bus.subscribe("moorage.test.hint", hint)
    asked = [Ping(f"id-{i}", f"cause-{i}") for i in range(20)]
    await asyncio.gather(*(bus.request("moorage.test.handle", one, timeout=30) for one in asked))
    await bus.request("moorage.test.handle", Ping("bad", "worse", fail=True), timeout=30)
    await bus.publish("moorage.test.hint", Ping("h", "because"))
    await asyncio.wait_for(handled.wait(), 60)
    log.info("of nothing")

    found = lines(logged)
    assert all(one["worker"] == "tester" and one["level"] and one["timestamp"] for one in found)
    done = {one["id"]: one for one in found if one["event"] == "at it"}
    assert done.keys() == {*(one.id for one in asked), "bad"}
    for one in asked:
        line = done[one.id]
        assert (line["note"], line["cause"], line["subject"]) == (one.id, one.cause, "moorage.test.handle")
    (failed,) = (one for one in found if one["event"] == "handler failed")
    assert (failed["id"], failed["cause"], failed["level"]) == ("bad", "worse", "error")
    assert "RuntimeError" in failed["exception"] and "hunter2" not in failed["exception"]
    (hinted,) = (one for one in found if one["event"] == "a hint")
    assert (hinted["id"], hinted["cause"], hinted["subject"]) == ("h", "because", "moorage.test.hint")
    (of_nothing,) = (one for one in found if one["event"] == "of nothing")
    assert not {"id", "cause", "subject"} & of_nothing.keys()


async def test_log_lines_about_unreadable_messages_have_the_subject(bus: Bus, logged: io.StringIO) -> None:
    async def handle(incoming: Incoming) -> bytes:
        structlog.get_logger("tester").info("junk")
        return b"{}"

    await bus.serve("moorage.test.junk", handle)
    for junk in (b"\xff{", b"[" * 100_000, b'{"id": 7}', b""):
        await bus.request("moorage.test.junk", junk, timeout=30)
    found = lines(logged)
    assert len(found) == 4
    assert all(one["subject"] == "moorage.test.junk" and "id" not in one for one in found)


async def test_secrets_are_redacted(logged: io.StringIO) -> None:
    seed = "SUAKYRHVIOREXV7EUZTBHUHL7NUMHPMAS7QMDU3GTIUWEI5LDNOXD43IZY"
    log = structlog.get_logger("tester")
    with handling("here", id="1"):
        log.warning(
            "a", token="t0p", nats_seed=seed, url="redis://reader:pass@host:1/0", text=f"used {seed} and Bearer abc"
        )
        logging.getLogger("aiohttp").warning("Authorization: Bearer abcdef to https://u:p@x/")
    first, second = lines(logged)
    for secret in ("t0p", seed, "pass@", "Bearer abc", ":p@"):
        assert secret not in json.dumps([first, second])
    assert "redis://reader:***@host:1/0" in first["url"] and (first["id"], second["id"]) == ("1", "1")
    assert second["logger"] == "aiohttp" and second["level"] == "warning" and second["worker"] == "tester"
    assert HANDLED.get() is None


async def test_requests_are_counted_by_outcome(bus: Bus) -> None:
    entered, free = asyncio.Event(), asyncio.Event()

    async def handle(incoming: Incoming) -> bytes:
        match incoming.data:
            case b"refuse":
                raise Refused(not_found("it"))
            case b"fail":
                raise RuntimeError
            case b"wait":
                entered.set()
                await free.wait()
            case data:
                msgspec.json.decode(data)
        return b"{}"

    subject = "moorage.test.count"
    await bus.serve(subject, handle, limit=1, max_bytes=100)
    for data in (b"1", b"2", b"refuse", b"fail", b"{junk", b"x" * 101):
        await bus.request(subject, data, timeout=30)
    waiting = asyncio.create_task(bus.request(subject, b"wait", timeout=30))
    await entered.wait()
    await bus.request(subject, b"3", timeout=30)  # one too many
    free.set()
    await waiting
    registry = bus.process_health.registry

    def count(outcome: str) -> float | None:
        return registry.get_sample_value("moorage_requests_total", {"subject": subject, "outcome": outcome})

    outcomes = ("answered", "refused", "failed", "rejected", "busy")
    assert [count(outcome) for outcome in outcomes] == [3, 1, 1, 2, 1]
    assert registry.get_sample_value("moorage_request_duration_seconds_count", {"subject": subject}) == 6

    asks = {"hpa": ("moorage.controllers.hpa.candidates", 1.0), "gone": ("moorage.controllers.gone.candidates", 1.0)}

    async def answer(_: Incoming) -> bytes:
        return b"{}"

    await bus.serve("moorage.controllers.hpa.candidates", answer)
    await bus.ask_many(asks, b"{}")
    for name, outcome in (("hpa", "answered"), ("gone", "timeout")):
        labels = {"controller": name, "question": "candidates", "outcome": outcome}
        assert registry.get_sample_value("moorage_asks_total", labels) == 1


async def test_no_trace_without_an_endpoint(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert not tracing.configured({}) and not tracing.is_enabled()
    assert not tracing.configured({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"})
    assert not tracing.configured({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"})
    assert tracing.configured({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x/v1/traces"})
    seen: list[object] = []
    subscription = await bus.nc.subscribe("moorage.test.plain", cb=_keep(seen))
    with tracing.server_span("x", {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}) as span, tracing.span("y"):
        assert span is None
        await bus.publish("moorage.test.plain", b"")
    await until(lambda: bool(seen))
    assert seen == [None]
    await subscription.unsubscribe()


def _keep(seen: list[object]):  # type: ignore[no-untyped-def]
    async def keep(message: object) -> None:
        seen.append(message.headers)  # type: ignore[attr-defined]

    return keep


def test_opentelemetry_is_optional() -> None:
    """Every worker starts without it, and logs that it is missing if it is configured."""
    code = """
import sys
for name in ("opentelemetry", "opentelemetry.sdk", "opentelemetry.trace"):
    sys.modules[name] = None
import importlib
from moorage.mesh.discovery import installed
for module in [spec.module for spec in installed().workers.values()]:
    importlib.import_module(module)
from moorage.telemetry import configure
configure("tester")
print("fine")
"""
    plain = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
    wanting = {**plain, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], env=wanting, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "moorage[traces]" in done.stderr


def test_an_unreachable_collector_does_not_delay_the_exit(nats: NatsServer, redis: RedisServer) -> None:
    asyncio.run(_provision(nats))
    port = free_port()
    env = os.environ | {
        "MOORAGE_NATS_URL": nats.url,
        "MOORAGE_REDIS_URL": redis.url,
        "MOORAGE_METRICS": f"127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "moorage.cli", "run", "inventory"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.kill)
        becomes(port, (200, "ok"))
        began = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 9, "requests to the collector end after ten"
