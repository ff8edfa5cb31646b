"""Simulates a fleet in the foreground of a command, beside the simulator of `moorage up`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moorage.bus import Bus, Settings, new_id, subjects
from moorage.model.names import cluster_tokens
from moorage.model.problems import Refused

from .commands import inject_fault
from .core.cluster_spec import ClusterSpec
from .core.fleet_documents import decode, expand
from .core.fleet_generator import generate
from .core.fleet_status import cluster_count, fleet_health, name_list, taken_problem, taken_text
from .core.simulator import Simulator
from .runner import SimulatorRunner, wall_clock_offset

Say = Callable[[str], None]


async def simulate(
    settings: Settings,
    *,
    fleet: Any = None,
    clusters: int = 0,
    nodes: int = 20,
    seed: int = 1,
    agent: str = "",
    say: Say = lambda _: None,
) -> None:
    """Simulates a fleet from a document, or a generated one, until the connection closes. Clusters without claims then leave.
    It is refused if others have all of its clusters, and goes on with the rest if they have some. `agent`: runs with the
    rights of this cluster's agent, so that the fleet is this cluster; as agents do, it stays in the fleet at the end."""
    wanted = expand(decode(fleet)) if fleet is not None else generate(clusters, nodes, seed)
    if agent and list(wanted) != [agent]:
        raise SystemExit(f"the agent of {agent} simulates this cluster and no other; the fleet has {', '.join(wanted)}")
    bus = await Bus.connect(settings, worker=f"agent.{cluster_tokens(agent)}" if agent else "sim")
    try:
        core = Simulator(new_id(), "", wall=wall_clock_offset())
        own = (subjects.desired("changed", agent), subjects.machines("changed", agent)) if agent else ()
        sim = SimulatorRunner(bus, core, *own)
        await sim.start()
        if not agent:
            await bus.serve(subjects.SIM_FAULT, lambda incoming: inject_fault(sim, incoming, answers_for_all=False))
        try:
            await _run(sim, wanted, say)
        finally:
            if not agent and bus.nc.is_connected:
                await _leave(sim, say)
    finally:
        await bus.close()


async def _run(sim: SimulatorRunner, wanted: dict[str, ClusterSpec], say: Say) -> None:
    sim.bus.set_waiting_for("the inventory")
    refused = (await sim.apply_fleet(wanted, timeout=86_400))["refused"]
    if refused and len(refused) == len(wanted):
        raise Refused(taken_problem(refused, "end that one first, or wait until it is silent"))
    sim.bus.process_health.health = lambda: fleet_health(sim.core)
    say(f"simulating {cluster_count(len(wanted) - len(refused))}; Ctrl-C ends it")
    if refused:
        say(f"refused: {taken_text(refused)}; they join when that one is silent or gone")
    await sim.bus.closed.wait()


async def _leave(sim: SimulatorRunner, say: Say) -> None:
    """Removes the fleet, and reports the clusters that stay."""
    in_use, unacknowledged = await sim.leave()
    for clusters, reason in ((in_use, "groups have claims there"), (unacknowledged, "nobody answered in time")):
        if clusters:
            say(
                f"{cluster_count(len(clusters))} stay in the fleet, stale from now on, because {reason}: "
                f"{name_list(clusters)}; `moorage delete cluster` forgets one"
            )
