"""Users of the broker that a cluster has: one for its agent, and one for what holds slots of its Machines."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from moorage.bus import Bus, NoAnswer, Settings, subjects
from moorage.cli.state_dir import StateDirectory
from moorage.cli.up.agent_users import ask
from moorage.mesh.permissions import agent_user, machines_of
from moorage.model.machines import MachinesSync, MachinesSynced
from moorage_testkit.mesh import Mesh

CLUSTER = "lab/edge"


async def may_ask_for_slots(settings: Settings, user: str) -> bool:
    """Returns whether `slots` answers what the user sends for its cluster."""
    bus = await Bus.connect(settings, worker=user)
    report = MachinesSync(id="1", cluster=CLUSTER, session="s", sequence=2)
    try:
        for _ in range(20):  # a worker that has just begun to hold its lease may not answer yet
            try:
                answer = await bus.request(subjects.machines("sync", CLUSTER), report, timeout=5)
            except NoAnswer:
                if bus.counts.get("errors"):
                    return False
                await asyncio.sleep(0.5)
                continue
            return msgspec.json.decode(answer, type=MachinesSynced).resync
        return False
    finally:
        await bus.close()


async def test_what_holds_slots_has_a_user_of_its_own_and_until_then_the_agents() -> None:
    with Mesh() as mesh:
        state = StateDirectory(mesh.state)
        url = str((state.read_endpoint() or {})["nats"])

        def user(place: str) -> tuple[Settings, str]:
            return Settings(url, ask(state, "add", place)), agent_user(place)

        agent = await asyncio.to_thread(user, CLUSTER)
        assert await may_ask_for_slots(*agent), "a cluster that joined when there was one user for both"
        machines = await asyncio.to_thread(user, machines_of(CLUSTER))
        assert await may_ask_for_slots(*machines) and not await may_ask_for_slots(*agent)
        assert await asyncio.to_thread(user, machines_of(CLUSTER)) == machines, "joining again changes nothing"
        await asyncio.to_thread(ask, state, "revoke", CLUSTER)
        for settings, name in (agent, machines):
            with pytest.raises(NoAnswer):
                await Bus.connect(settings, worker=name, timeout=1)
