"""Starts the processes of `moorage up` in order, with the settings of each."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from moorage.bus import Bus, Settings, setting
from moorage.cli.workers import load, prepare_process, serve
from moorage.mesh.discovery import installed
from moorage.telemetry import configure, level_from_env, listen, url_of

from ..exit_codes import DONE, USAGE, Failure
from ..process_title import set_title
from ..state_dir import StateDirectory
from . import brokers, registered_agents
from .agent_users import AgentUsers
from .bootstrap import Bootstrap, bootstrap
from .credentials import Credentials
from .processes import LAST_DELAY, SupervisedProcess, block_signals
from .supervisor import Plan, Stopped, Supervisor, program
from .warm import warm

#: By the kind and the number of the worker.
_MetricsSockets = Mapping[tuple[str, int], socket.socket]
#: Sockets of the workers that serve HTTP, by kind.
_Listeners = Mapping[str, socket.socket]


@dataclass
class Options:
    http: str = "127.0.0.1:7070"
    fleet: Path | None = None
    example: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    nats: str = "127.0.0.1:0"
    named: Path | None = None  # the state directory, if --state was given
    restart_delay: float = LAST_DELAY  # the longest before a process that ended is started again, in seconds


def launch(state: StateDirectory, options: Options, say: Callable[[str], None]) -> int:
    """Runs a mesh until it is asked to stop. The caller has locked the state directory."""
    try:
        level_from_env()
    except SystemExit as wrong:
        raise Failure(str(wrong), USAGE) from None
    set_title("up")
    listeners = {
        "gateway": brokers.listen(options.http),
        "placement": brokers.listen(os.environ.get("MOORAGE_PLACEMENT_HTTP", "127.0.0.1:0"), "MOORAGE_PLACEMENT_HTTP"),
    }
    mesh = installed()
    counts = {kind: count for kind in mesh.workers if (count := options.counts.get(kind, 1))}
    secrets = Credentials.open(state, mesh.users)
    warm(counts)
    try:
        for kind in counts:
            mesh.workers[kind].check_settings()
    except SystemExit as wrong:
        raise Failure(str(wrong), USAGE) from None
    nats, redis = os.environ.get("MOORAGE_NATS_URL", ""), setting("MOORAGE_REDIS_URL")
    shared_seed = setting("MOORAGE_NATS_SEED")
    plan = Plan(
        state=state,
        url=brokers.url_of(listeners["gateway"]),
        placement=brokers.url_of(listeners["placement"]),
        token=secrets.token,
        nats=nats,
        redis=redis,
        admin_seed=shared_seed if nats else secrets.seeds["admin"],
        controller_seed=shared_seed if nats else secrets.seeds["controller"],
    )
    supervisor = Supervisor(plan, say, options.restart_delay)
    block_signals()
    try:
        redis_for = _start_brokers(supervisor, secrets, options.nats)
        _provision(supervisor)
        say("starting " + ", ".join(counts))
        workers = [(kind, number) for kind, count in counts.items() for number in range(count)]
        # The sockets stay open in this process, so that a worker has the same address after a restart.
        metrics_sockets = {worker: listen("127.0.0.1:0") for worker in workers}
        for kind, number in workers:
            settings = Settings(plan.nats, shared_seed if nats else secrets.seeds[kind], redis_for(kind))
            _start_worker(supervisor, kind, number, settings, listeners, metrics_sockets)
        if not nats:  # agents can be given users only on our own broker
            _start_agents(supervisor, Settings(plan.nats, plan.admin_seed), listeners, metrics_sockets)
        supervisor.write_endpoint()
        logs = str(state.logs)
        admin = Settings(plan.nats, plan.admin_seed)
        request = Bootstrap(plan.url, plan.token, admin, counts, options.fleet, options.example, logs, options.named)
        code = supervisor.perform("bootstrap", partial(bootstrap, request))
        if code != DONE:
            tails = [
                f"--- {process.log} ({process.last_exit})\n{process.tail()}"
                for process in plan.processes
                if process.deaths
            ]
            raise Failure("\n".join([f"the mesh did not become ready; the logs are in {state.logs}", *tails]), code)
        supervisor.started = True
        sys.stdout.write(f"ready {plan.url}\n")
        sys.stdout.flush()
        supervisor.watch()
    except Stopped:
        say("stopping")
    finally:
        supervisor.stop()
    return DONE


def _start_brokers(supervisor: Supervisor, secrets: Credentials, wanted: str) -> Callable[[str], str]:
    """Starts NATS and Redis unless external ones are configured. Returns a function from a kind of worker to its Redis URL."""
    plan, state = supervisor.plan, supervisor.plan.state
    waits: list[tuple[SupervisedProcess, Callable[[], bool]]] = []
    if not plan.nats:
        host, _, given = wanted.rpartition(":")
        port = brokers.nats_port(secrets, int(given), supervisor.held_ports)
        secrets.save(state)
        listen = f"{host or '127.0.0.1'}:{port}"
        brokers.write_nats_conf(state, listen, secrets, installed())
        plan.nats = f"nats://127.0.0.1:{port}"
        broker = supervisor.start(program("nats", [brokers.nats_server(), "-c", str(state.nats_conf)], state.logs))
        waits.append((broker, partial(brokers.nats_ready, port)))
        users = AgentUsers(state, secrets, listen, installed(), lambda: broker.pid, supervisor.perform)
        supervisor.on_wake = users.answer_requests
    redis_port = 0
    if not plan.redis:
        redis_port = brokers.free_port(supervisor.held_ports)
        brokers.write_redis_conf(state, redis_port, secrets)
        plan.redis = brokers.redis_url(redis_port, secrets, "default")
        redis = supervisor.start(program("redis", [brokers.redis_server(), str(state.redis_conf)], state.logs))
        waits.append((redis, partial(brokers.redis_ready, redis_port)))

    def redis_for(kind: str) -> str:
        if not redis_port:
            return plan.redis
        return brokers.redis_url(
            redis_port, secrets, "inventory" if installed().workers[kind].writes_redis else "reader"
        )

    for process, ready in waits:
        supervisor.say(f"starting {process.kind}")
        supervisor.wait_until(ready, 60, process.kind, process)
    return redis_for


def _provision(supervisor: Supervisor) -> None:
    """Creates the streams in a child process: the supervisor itself never runs an event loop, which might start threads."""
    settings = Settings(supervisor.plan.nats, supervisor.plan.admin_seed)

    async def provision() -> None:
        bus = await Bus.connect(settings, worker="admin")
        await bus.provision(installed().stores.values())
        await bus.close()

    if supervisor.perform("provision", lambda: asyncio.run(provision())) != DONE:
        raise Failure(f"cannot create the streams on {supervisor.plan.nats}")


def _start_agents(
    supervisor: Supervisor, settings: Settings, listeners: _Listeners, metrics_sockets: _MetricsSockets
) -> None:
    """Starts the process that runs the agents of clusters registered with a kubeconfig; without any it waits for one."""
    state = supervisor.plan.state
    metrics_socket = listen("127.0.0.1:0")

    def body() -> int:
        for sock in (*listeners.values(), *metrics_sockets.values()):
            sock.close()
        process_health = configure("agents", restarts=process.deaths)
        prepare_process()
        return serve(registered_agents.main(settings, state), process_health, metrics_socket)

    process = SupervisedProcess("agents", 0, body, state.logs / "agents.log", metrics=url_of(metrics_socket))
    supervisor.start(process)


def _start_worker(
    supervisor: Supervisor,
    kind: str,
    number: int,
    settings: Settings,
    listeners: _Listeners,
    metrics_sockets: _MetricsSockets,
) -> None:
    """Starts one worker, which closes the sockets of the others."""
    plan = supervisor.plan
    metrics_socket = metrics_sockets[kind, number]
    extra: dict[str, Any] = {"listener": listeners[kind], "token": plan.token} if kind in listeners else {}

    def body() -> int:
        for owner, listener in listeners.items():
            if owner != kind:
                listener.close()
        for other in metrics_sockets.values():
            if other is not metrics_socket:
                other.close()
        process_health = configure(kind, restarts=process.deaths)
        prepare_process(installed().workers[kind].nice)
        return serve(load(kind)(settings, **extra), process_health, metrics_socket)

    name = f"{kind}-{number}" if number else kind
    wave = 0 if kind == "gateway" else 1
    log = plan.state.logs / f"{name}.log"
    process = SupervisedProcess(kind, number, body, log, wave=wave, metrics=url_of(metrics_socket))
    supervisor.start(process)
