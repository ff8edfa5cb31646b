"""The simulator as a worker: thousands of agents over one connection. `moorage up` runs one that operators fill; the
command line runs others by themselves, with a fleet of their own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from moorage.bus import MAX_PAYLOAD, Bus, BusError, Incoming, NoAnswer, Settings, new_id, subjects
from moorage.mesh import stores
from moorage.model.names import cluster_from_tokens, cluster_tokens
from moorage.model.problems import ENVELOPE, Problem, Refused, Violation, invalid, not_found, unknown_fields
from moorage.parsing import yaml_json
from moorage.telemetry import MetricValue

from .core.cluster_spec import ClusterSpec
from .core.fleet_documents import FleetDocument, decode, expand
from .core.fleet_generator import generate
from .core.simulator import FAULTS, Simulator

FLEET_BUCKET = stores.SIMULATED_FLEET
#: Between two looks at the timers at least this long: idle fleets are looked at in bunches.
MIN_TICK = 0.01
MAX_FLEET = 8 << 20
MAX_CONTAINERS = 1_000_000
#: So long clusters have to leave when a simulator ends: who asked it to end waits for it.
LEAVE_TIMEOUT = 2.5
_NAMED = 5


class SavedFleet(msgspec.Struct):
    """What a simulator that is started again needs: its fleet, and the session that it takes over."""

    session: str
    fleet: FleetDocument | None = None


class SimulatorWorker:
    def __init__(self, bus: Bus, core: Simulator, hints: str = "moorage.desired.changed.*.*") -> None:
        self.bus = bus
        self.core = core
        self._hints = hints
        self.inbox = bus.nc.new_inbox()
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._applying = asyncio.Lock()
        self._subjects: dict[tuple[str, str], str] = {}

    @property
    def now(self) -> float:
        return self._loop.time()

    async def start(self) -> None:
        await self.bus.subscribe(f"{self.inbox}.>", self._on_reply, max_bytes=MAX_PAYLOAD)
        await self.bus.subscribe(self._hints, self._on_hint)
        self.bus.spawn(self._run())

    def _subject(self, verb: str, cluster: str) -> str:
        key = (verb, cluster)
        found = self._subjects.get(key)
        if found is None:
            if verb == "report":
                found = subjects.reports(cluster, "cluster")
            else:
                found = subjects.desired("get" if verb == "ask" else "confirm", cluster)
            self._subjects[key] = found
        return found

    def _on_reply(self, subject: str, data: bytes) -> None:
        token, nonce = subject[len(self.inbox) + 1 :].split(".")
        self.core.on_reply(token, nonce, data, self.now)
        self._woken.set()

    def _on_hint(self, subject: str, _data: bytes) -> None:
        provider, cluster = subject.rsplit(".", 2)[1:]
        self.core.on_hint(cluster_from_tokens(provider, cluster), self.now)
        self._woken.set()

    async def _run(self) -> None:
        core = self.core
        while True:
            core.tick(self.now)
            while core.out:
                batch = core.out[:]
                core.out.clear()
                for verb, cluster, payload, token in batch:
                    with contextlib.suppress(Exception):  # what is lost while NATS is away is said again
                        subject = self._subject(verb, cluster)
                        await self.bus.nc.publish(subject, payload, f"{self.inbox}.{token}")
            self._woken.clear()
            due = core.next_timer()
            wait = 1.0 if due is None else max(MIN_TICK, due - self.now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()

    async def apply_fleet(self, wanted: dict[str, ClusterSpec], timeout: float = 600) -> dict[str, Any]:
        """Make the fleet equal to this; back when the inventory has accepted or refused every cluster."""
        async with self._applying:
            changed = self.core.apply(wanted, self.now)
            self._woken.set()
            try:
                async with asyncio.timeout(timeout):
                    while self.core.unacknowledged:  # noqa: ASYNC110 - many answers, one at a time, end this
                        await asyncio.sleep(0.005)
            except TimeoutError:
                missing = sorted(self.core.unacknowledged)
                detail = f"the inventory has not accepted {len(missing)} clusters, among them {', '.join(missing[:5])}"
                raise Refused(Problem(title="No answer", status=504, code="NoAnswer", detail=detail)) from None
        refused = {ident: agent.reason for ident, agent in self.core.agents.items() if agent.state == "refused"}
        return {
            "accepted": True,
            "clusters": sorted(self.core.agents),
            "added": len(changed.added),
            "changed": len(changed.changed),
            "removed": len(changed.removed),
            "refused": refused,
        }

    async def leave(self) -> tuple[list[str], list[str]]:
        """Takes away the clusters that run nothing of anybody's; those that stay because of it, and those of which nobody
        said in time that they left."""
        held = {ident: agent.cluster.spec for ident, agent in self.core.agents.items() if agent.has_apps}
        self.core.apply(held, self.now)
        self._woken.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT):
                while self.core.agents.keys() - held:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.005)
        return sorted(held), sorted(self.core.agents.keys() - held)


def name_list(clusters: Iterable[str]) -> str:
    names = sorted(clusters)
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def taken_text(refused: dict[str, str]) -> str:
    """Of one of them why; of the others it is the same."""
    first = min(refused)
    return f"{name_list(refused)}: another simulator or agent has {'it' if len(refused) == 1 else 'them'} ({refused[first]})"


def taken_problem(refused: dict[str, str], rest: str) -> Problem:
    return Problem(title="Refused", status=409, code="ClusterTaken", detail=f"{taken_text(refused)}; {rest}")


class FleetCommands:
    """What operators ask of the simulator of `moorage up`."""

    def __init__(self, sim: SimulatorWorker, kept: SavedFleet) -> None:
        self.sim = sim
        self.kept = kept

    async def apply(self, incoming: Incoming) -> bytes:
        document = decode(yaml_json.parse_json(incoming.data, MAX_CONTAINERS))
        try:
            await self.keep(SavedFleet(self.kept.session, document))
        except (NoAnswer, BusError) as error:
            raise Refused(Problem(title="No answer", status=503, code="NoAnswer", detail=str(error))) from error
        filled = await self.sim.apply_fleet(expand(document))
        if filled["refused"]:
            rest = "they join when that one is silent or gone; all other clusters are as the document says"
            raise Refused(taken_problem(filled["refused"], rest))
        return msgspec.json.encode(filled)

    async def keep(self, kept: SavedFleet) -> None:
        await self.sim.bus.objects(FLEET_BUCKET).put("fleet", msgspec.json.encode(kept))
        self.kept = kept

    async def list(self, incoming: Incoming) -> bytes:
        ask = msgspec.json.decode(incoming.data) if incoming.data.strip() else {}
        if not isinstance(ask, dict):
            raise Refused(invalid([Violation(path="", code="WrongType", message="must be an object")]))
        if errors := unknown_fields(ask, ("limit", "continue", *ENVELOPE)):
            raise Refused(invalid(errors))
        limit, after = ask.get("limit", 10_000), ask.get("continue", "")
        if not isinstance(limit, int) or not isinstance(after, str) or not 1 <= limit <= 10_000:
            message = "limit is a number up to 10000, continue is text"
            raise Refused(invalid([Violation(path="limit", code="BadValue", message=message)]))
        rows = self.sim.core.rows(limit, after)
        more = rows[-1]["cluster"] if len(rows) == limit else ""
        total = len(self.sim.core.agents)
        return msgspec.json.encode({"items": rows, "total": total, **({"continue": more} if more else {})})


async def _fault(sim: SimulatorWorker, incoming: Incoming, main: bool) -> bytes | None:
    """Every simulator hears this; the one that has the cluster answers, and the mesh's own if nobody has it."""
    ask = msgspec.json.decode(incoming.data)
    if not isinstance(ask, dict):
        raise Refused(invalid([Violation(path="", code="WrongType", message="must be an object")]))
    cluster, fault, seconds = ask.get("cluster"), ask.get("fault"), ask.get("seconds")
    errors = unknown_fields(ask, ("cluster", "fault", "seconds", *ENVELOPE))
    if not isinstance(cluster, str):
        errors.append(Violation(path="cluster", code="Required", message="is required"))
    if fault not in FAULTS:
        errors.append(Violation(path="fault", code="BadValue", message=f"must be one of {', '.join(FAULTS)}"))
    bad = isinstance(seconds, bool) or not isinstance(seconds, int | float | None)
    if bad or (seconds is not None and not 0 < seconds <= 86_400):
        errors.append(Violation(path="seconds", code="BadValue", message="must be a number of seconds, at most a day"))
    if errors:
        if not main:
            return None
        raise Refused(invalid(errors))
    assert isinstance(cluster, str) and isinstance(fault, str)
    if sim.core.fault(cluster, fault, seconds, sim.now):
        sim._woken.set()
        return msgspec.json.encode({"accepted": True, "cluster": cluster, "fault": fault})
    if not main:
        return None
    await asyncio.sleep(0.25)  # another simulator may have it, and the first answer counts
    raise Refused(not_found(f"a simulated cluster {cluster}"))


async def main(settings: Settings) -> None:
    """The simulator that always runs under `up`. Started again, it has the fleet it had."""
    session = new_id()
    bus = await Bus.connect(settings, worker="sim")
    try:
        data = await bus.objects(FLEET_BUCKET).get("fleet")
        before = msgspec.json.decode(data, type=SavedFleet) if data is not None else None
        kept = SavedFleet(session, before.fleet if before is not None else None)
        loop = asyncio.get_running_loop()
        sim = SimulatorWorker(bus, Simulator(session, before.session if before else "", wall=time.time() - loop.time()))
        served = FleetCommands(sim, kept)
        await served.keep(kept)
        await sim.start()
        if kept.fleet is not None:
            bus.spawn(sim.apply_fleet(expand(kept.fleet), timeout=86_400))
        await bus.serve(subjects.SIM_APPLY, served.apply, queue="sim", max_bytes=MAX_FLEET)
        await bus.serve(subjects.SIM_LIST, served.list, queue="sim")
        await bus.serve(subjects.SIM_FAULT, lambda incoming: _fault(sim, incoming, True))
        bus.vitals.add_values(lambda: fleet_metrics(sim))
        await bus.announce(lambda: fleet_health(sim))
        await bus.closed.wait()
    finally:
        await bus.close()


def fleet_metrics(sim: SimulatorWorker) -> Iterable[MetricValue]:
    states = Tally(agent.state for agent in sim.core.agents.values())
    yield MetricValue(
        "moorage_sim_clusters", "Simulated clusters by what the inventory thinks of them", states, "state"
    )


def fleet_health(sim: SimulatorWorker) -> dict[str, Any]:
    refused = [ident for ident, agent in sim.core.agents.items() if agent.state == "refused"]
    missing = [f"{ident} is refused: another simulator has it" for ident in refused[:5]]
    return {"ok": not refused, "missing": missing, "clusters": len(sim.core.agents)}


async def simulate(
    settings: Settings,
    *,
    fleet: Any = None,
    clusters: int = 0,
    nodes: int = 20,
    seed: int = 1,
    agent: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """A fleet of its own in the foreground, from a document or generated; what holds no claims leaves when this ends. Where
    others have all of its clusters it is refused; where they have some, it goes on with the rest. `agent`: with the rights
    of this cluster's agent, so that the fleet is this cluster, and as agents do it stays in the fleet."""
    wanted = expand(decode(fleet)) if fleet is not None else generate(clusters, nodes, seed)
    if agent and list(wanted) != [agent]:
        raise SystemExit(f"the agent of {agent} simulates this cluster and no other; the fleet has {', '.join(wanted)}")
    bus = await Bus.connect(settings, worker=f"agent.{cluster_tokens(agent)}" if agent else "sim")
    try:
        loop = asyncio.get_running_loop()
        core = Simulator(new_id(), "", wall=time.time() - loop.time())
        sim = SimulatorWorker(bus, core, subjects.desired("changed", agent)) if agent else SimulatorWorker(bus, core)
        await sim.start()
        if not agent:
            await bus.serve(subjects.SIM_FAULT, lambda incoming: _fault(sim, incoming, False))
        bus.set_waiting_for("the inventory")
        try:
            refused = (await sim.apply_fleet(wanted, timeout=86_400))["refused"]
            if refused and len(refused) == len(wanted):
                raise Refused(taken_problem(refused, "end that one first, or wait until it is silent"))
            bus.vitals.health = lambda: fleet_health(sim)
            say(f"simulating {_count(len(wanted) - len(refused))}; Ctrl-C ends it")
            if refused:
                say(f"refused: {taken_text(refused)}; they join when that one is silent or gone")
            await bus.closed.wait()
        finally:
            if not agent and bus.nc.is_connected:
                await report_leaving(sim, say)
    finally:
        await bus.close()


async def report_leaving(sim: SimulatorWorker, say: Callable[[str], None]) -> None:
    """The end of a fleet in the foreground, and what of it stays."""
    held, slow = await sim.leave()
    for clusters, why in ((held, "groups have claims there"), (slow, "nobody answered in time")):
        if clusters:
            say(
                f"{_count(len(clusters))} stay in the fleet, stale from now on, because {why}: {name_list(clusters)}; "
                "`moorage delete cluster` forgets one"
            )


def _count(clusters: int) -> str:
    return f"{clusters} cluster" + ("" if clusters == 1 else "s")
