"""What `moorage up` starts, in which order, and what each of it is told."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from moorage.bus import Bus, Settings, setting
from moorage.cli.workers import HEAVY, load, prepare_process, serve
from moorage.mesh.discovery import installed
from moorage.telemetry import configure, listen, url_of

from ..exit_codes import DONE, Failure
from ..state_dir import StateDirectory
from . import brokers, registered_agents
from .agent_users import AgentUsers
from .bootstrap import Opening, open_up
from .credentials import Credentials
from .processes import SupervisedProcess
from .supervisor import Plan, Stopped, Supervisor, program, warm


@dataclass
class Options:
    http: str = "127.0.0.1:7070"
    fleet: Path | None = None
    example: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    nats: str = "127.0.0.1:0"
    named: Path | None = None  # the state directory, where somebody named it


def launch(state: StateDirectory, options: Options, say: Callable[[str], None]) -> int:
    """Runs a mesh until somebody asks for its end. The state directory is already ours."""
    listener = brokers.listen(options.http)
    mesh = installed()
    counts = {kind: count for kind in mesh.workers if (count := options.counts.get(kind, 1))}
    secrets = Credentials.open(state, mesh.users)
    warm([*HEAVY, *(mesh.workers[kind].module for kind in counts)])
    nats, redis = os.environ.get("MOORAGE_NATS_URL", ""), setting("MOORAGE_REDIS_URL")
    shared_seed = setting("MOORAGE_NATS_SEED")
    plan = Plan(
        state=state,
        url=brokers.url_of(listener),
        token=secrets.token,
        nats=nats,
        redis=redis,
        admin_seed=shared_seed if nats else secrets.seeds["admin"],
        controller_seed=shared_seed if nats else secrets.seeds["controller"],
    )
    supervisor = Supervisor(plan, say)
    supervisor.prepare()
    try:
        redis_for = _start_brokers(supervisor, secrets, options.nats)
        _provision(supervisor)
        say("starting " + ", ".join(counts))
        shown: list[socket.socket] = []
        for kind, count in counts.items():
            seed = shared_seed if nats else secrets.seeds[kind]
            settings = Settings(plan.nats, seed, redis_for(kind))
            for number in range(count):
                _start_worker(supervisor, kind, number, settings, listener, shown)
        if not nats:  # only on a broker of our own can agents be given users
            _start_agents(supervisor, Settings(plan.nats, plan.admin_seed), listener, shown)
        supervisor.tell()
        logs = str(state.logs)
        opening = Opening(plan.url, plan.token, counts, options.fleet, options.example, logs, options.named)
        code = supervisor.perform("opening", partial(open_up, opening))
        if code != DONE:
            tails = [f"--- {kept.log} ({kept.last_exit})\n{kept.tail()}" for kept in plan.kept if kept.deaths]
            raise Failure("\n".join([f"the mesh did not get ready; the logs are in {state.logs}", *tails]), code)
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
    """Starts NATS and Redis unless others are named; answers which Redis URL each kind gets."""
    plan, state = supervisor.plan, supervisor.plan.state
    waits: list[tuple[SupervisedProcess, Callable[[], bool]]] = []
    if not plan.nats:
        host, _, given = wanted.rpartition(":")
        port = brokers.nats_port(secrets, int(given))
        secrets.save(state)
        listen = f"{host or '127.0.0.1'}:{port}"
        brokers.write_nats_conf(state, listen, secrets, installed())
        plan.nats = f"nats://127.0.0.1:{port}"
        kept = supervisor.start(program("nats", [brokers.nats_server(), "-c", str(state.nats_conf)], state.logs))
        waits.append((kept, partial(brokers.nats_ready, port)))
        broker = kept
        supervisor.asked = AgentUsers(
            state, secrets, listen, installed(), lambda: broker.pid, supervisor.perform
        ).answer
    redis_port = 0
    if not plan.redis:
        redis_port = brokers.free_port()
        brokers.write_redis_conf(state, redis_port, secrets)
        plan.redis = brokers.redis_url(redis_port, secrets, "default")
        kept = supervisor.start(program("redis", [brokers.redis_server(), str(state.redis_conf)], state.logs))
        waits.append((kept, partial(brokers.redis_ready, redis_port)))

    def redis_for(kind: str) -> str:
        if not redis_port:
            return plan.redis
        return brokers.redis_url(
            redis_port, secrets, "inventory" if installed().workers[kind].writes_redis else "reader"
        )

    for kept, ready in waits:
        supervisor.say(f"starting {kept.kind}")
        supervisor.until(ready, 20, kept.kind, kept)
    return redis_for


def _provision(supervisor: Supervisor) -> None:
    """In a child: the supervisor itself never runs an event loop, which might start threads."""
    settings = Settings(supervisor.plan.nats, supervisor.plan.admin_seed)

    async def provision() -> None:
        bus = await Bus.connect(settings, worker="admin")
        await bus.provision(installed().stores.values())
        await bus.close()

    if supervisor.perform("provision", lambda: asyncio.run(provision())) != DONE:
        raise Failure(f"the streams could not be made on {supervisor.plan.nats}")


def _start_agents(
    supervisor: Supervisor, settings: Settings, listener: socket.socket, shown: list[socket.socket]
) -> None:
    """Those of clusters that are registered with a kubeconfig; without any it only waits for one."""
    state = supervisor.plan.state
    own = listen("127.0.0.1:0")

    def body() -> int:
        for sock in (listener, *shown):
            sock.close()
        vitals = configure("agents", restarts=kept.deaths)
        prepare_process()
        return serve(registered_agents.main(settings, state), vitals, own)

    kept = SupervisedProcess("agents", 0, body, state.logs / "agents.log", metrics=url_of(own))
    supervisor.start(kept)


def _start_worker(
    supervisor: Supervisor,
    kind: str,
    number: int,
    settings: Settings,
    listener: socket.socket,
    shown: list[socket.socket],
) -> None:
    """`shown`: where each worker shows how it does. Kept open here, so that one that is started again is found again."""
    plan = supervisor.plan
    own = listen("127.0.0.1:0")
    shown.append(own)
    extra: dict[str, Any] = {"listener": listener, "token": plan.token} if kind == "gateway" else {}

    def body() -> int:
        if kind != "gateway":
            listener.close()
        for other in shown:
            if other is not own:
                other.close()
        vitals = configure(kind, restarts=kept.deaths)
        prepare_process(installed().workers[kind].nice)
        return serve(load(kind)(settings, **extra), vitals, own)

    name = f"{kind}-{number}" if number else kind
    wave = 0 if kind == "gateway" else 1
    kept = SupervisedProcess(kind, number, body, plan.state.logs / f"{name}.log", wave=wave, metrics=url_of(own))
    supervisor.start(kept)
