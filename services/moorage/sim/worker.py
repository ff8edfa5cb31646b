"""The simulator worker of `moorage up`: simulates the fleet that operators apply, and keeps it across restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from moorage.bus import Bus, Settings, new_id, subjects
from moorage.mesh import stores
from moorage.telemetry import MetricValue

from .commands import MAX_FLEET, FleetCommands, SavedFleet, inject_fault
from .core.fleet_documents import expand
from .core.fleet_status import fleet_health
from .core.simulator import Simulator
from .runner import SimulatorRunner, wall_clock_offset


async def main(settings: Settings) -> None:
    """Runs the worker. A restarted worker takes over the saved fleet."""
    session = new_id()
    bus = await Bus.connect(settings, worker="sim")
    try:
        data = await bus.objects(stores.SIMULATED_FLEET).get("fleet")
        before = msgspec.json.decode(data, type=SavedFleet) if data is not None else None
        saved = SavedFleet(session, before.fleet if before is not None else None)
        sim = SimulatorRunner(bus, Simulator(session, before.session if before else "", wall=wall_clock_offset()))
        commands = FleetCommands(sim, saved)
        await commands.save(saved)
        await sim.start()
        if saved.fleet is not None:
            bus.spawn(sim.apply_fleet(expand(saved.fleet), timeout=86_400))
        await bus.serve(subjects.SIM_APPLY, commands.apply, queue="sim", max_bytes=MAX_FLEET)
        await bus.serve(subjects.SIM_LIST, commands.list, queue="sim")
        await bus.serve(subjects.SIM_FAULT, lambda incoming: inject_fault(sim, incoming, answers_for_all=True))
        bus.process_health.add_values(lambda: _metrics(sim.core))
        await bus.announce(lambda: fleet_health(sim.core))
        await bus.closed.wait()
    finally:
        await bus.close()


def _metrics(simulator: Simulator) -> Iterable[MetricValue]:
    states = Counter(agent.state for agent in simulator.agents.values())
    yield MetricValue("moorage_sim_clusters", "Simulated clusters by their state in the inventory", states, "state")
