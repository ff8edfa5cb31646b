"""Controllers that answer late, twice, never, nonsense, too much, or are stopped, under each policy: the right outcome is
named, and nobody waits longer than the deadline and a little more."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from moorage.bus import subjects
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group
from moorage_testkit.polling import until

from .conftest import MakeMesh

DEADLINE, GRACE = 0.3, 0.05
OUTCOMES = {
    "never": "timeout",
    "late": "timeout",
    "stopped": "timeout",
    "nonsense": "error",
    "too much": "error",
    "twice": "answered",
}
POLICIES = ("required", "optional", "stale-ok")

FILE = """
from moorage.sdk import allow, controller

@controller("odd", deadline={deadline})
async def odd(ask, fleet):
    return {{app.name: allow(["lab/c-1"]) for app in ask.apps}}
"""


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(fleet(3, 64))


def allowing(cluster: str) -> bytes:
    return msgspec.json.encode({"apps": {"web": {"groups": [{"mode": "allow", "clusters": [cluster]}]}}})


class Odd:
    """A controller over plain NATS that does as it is told; or, to be stopped, a process of its own."""

    def __init__(self, driver: MeshClient, behaviour: str) -> None:
        self._driver, self._behaviour = driver, behaviour
        self._late: set[asyncio.Task[None]] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self.good = True
        self.answered_late = 0

    async def start(self, file: Path) -> None:
        if self._behaviour != "stopped":
            await self._driver.bus.nc.subscribe(subjects.candidates("odd"), cb=self._asked)
            await self._driver.bus.settle()
            return
        self._process = await asyncio.to_thread(self._spawn, file)

    def _spawn(self, file: Path) -> subprocess.Popen[bytes]:
        file.write_text(FILE.format(deadline=DEADLINE))
        env = {**os.environ, "MOORAGE_STATE": str(self._driver.mesh.state)}
        return subprocess.Popen([sys.executable, "-m", "moorage.cli", "run", str(file)], env=env)

    def misbehave(self) -> None:
        self.good = False
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def recover(self) -> None:
        self.good = True
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    async def _asked(self, msg: Msg) -> None:
        say = self._driver.bus.publish
        if self.good:
            await say(msg.reply, allowing("lab/c-1"))
        elif self._behaviour == "late":
            task = asyncio.ensure_future(self._answer_late(msg.reply))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        elif self._behaviour == "twice":
            await say(msg.reply, allowing("lab/c-1"))
            await say(msg.reply, allowing("lab/c-2"))
        elif self._behaviour == "nonsense":
            await say(msg.reply, b"\xff\xfe{")
        elif self._behaviour == "too much":
            await say(msg.reply, allowing("lab/" + "x" * (5 << 20)))

    async def _answer_late(self, reply: str) -> None:
        await asyncio.sleep(DEADLINE + 0.1)
        await self._driver.bus.publish(reply, allowing("lab/c-2"))
        self.answered_late += 1

    async def stop(self) -> None:
        await asyncio.gather(*self._late)
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


@asynccontextmanager
async def odd(driver: MeshClient, behaviour: str, policy: str, file: Path) -> AsyncIterator[Odd]:
    one = Odd(driver, behaviour)
    await one.start(file)
    wanted = {"name": "odd", "deadlineMs": DEADLINE * 1000, "policy": policy}
    try:
        await driver.ask(subjects.CONTROLLERS_SET, wanted)
        yield one
    finally:
        await one.stop()
        await driver.ask(subjects.CONTROLLERS_SET, {"name": "odd", "remove": True})


async def simulate(driver: MeshClient, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """All of the answer, and what it says of the odd one."""
    why = await driver.http("/v1/simulate", application(name))
    return why, next((c for c in why["controllers"] if c["name"] == "odd"), {})


async def decided_in(driver: MeshClient, name: str) -> float:
    """Seconds from the question on the bus to the event of the decision, both as one reader of the bus sees them."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []
    told: asyncio.Future[float] = loop.create_future()

    def question(_subject: str, data: bytes) -> None:
        if msgspec.json.decode(data)["group"] == group(name):
            asked.append(loop.time())

    def decision(_subject: str, _data: bytes) -> None:
        if not told.done():
            told.set_result(loop.time())

    subscriptions = [
        await driver.bus.subscribe(subjects.candidates("hpa"), question),
        await driver.bus.subscribe(subjects.decision_event("*", group(name)), decision),
    ]
    try:
        await driver.apply(application(name))
        async with asyncio.timeout(10):
            return await told - asked[0]
    finally:
        for subscription in subscriptions:
            await subscription.unsubscribe()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("behaviour", OUTCOMES)
async def test_a_bad_controller_is_named_and_not_waited_for(
    driver: MeshClient, tmp_path: Path, behaviour: str, policy: str
) -> None:
    name = f"{behaviour}-{policy}".replace(" ", "-")
    outcome = OUTCOMES[behaviour]
    async with odd(driver, behaviour, policy, tmp_path / "odd.py") as one:

        async def asked() -> bool:
            _, said = await simulate(driver, name)
            return said.get("outcome") == "answered" and said.get("policy") == policy

        await eventually(asked, 15, "the odd one is asked and answers")
        one.misbehave()
        why, said = await simulate(driver, name)
        clusters = why.get("apps", {}).get("web", {}).get("clusters", [])
        codes = {(r["code"], r.get("by")) for r in why.get("reasons", [])}
        warned = [w["message"] for w in why.get("warnings", []) if w["code"] == "ControllerLeftOut"]
        if outcome == "answered":
            assert (said["outcome"], clusters) == ("answered", ["lab/c-1"]), "the first answer counts"
        elif policy == "required":
            assert said["outcome"] == outcome and why["phase"] == "Pending" and not clusters
            assert codes == {("ControllerTimeout" if outcome == "timeout" else "ControllerError", "odd")}
        elif policy == "optional":
            assert said["outcome"] == outcome and len(clusters) == 1 and not codes
            assert len(warned) == 1 and warned[0].startswith("odd: ")
        else:
            assert (said["outcome"], clusters) == ("stale", ["lab/c-1"]), "its last answer to this question"
            assert not warned and said["error"]
        # Deciding takes the deadline and a little; of a few tries the best, since the machine may be busy just now.
        # Who has answered, however badly, is not waited for any longer.
        most = DEADLINE + GRACE if outcome == "timeout" else DEADLINE * 0.8
        times: list[float] = []
        while len(times) < 5 and min(times, default=9) > most:
            times.append(await decided_in(driver, f"{name}-{len(times)}"))
        assert min(times) <= most, times
        assert max(times) <= most + 1, times
        if outcome == "timeout":
            assert min(times) >= DEADLINE * 0.9, "a deadline that is not used up would leave out those who are slow"

        one.recover()
        why, said = await simulate(driver, name)
        if behaviour == "stopped":  # it first answers what it was asked while it stood
            await eventually(asked, 10, "it is asked again")
            why, said = await simulate(driver, name)
        assert (said["outcome"], why["apps"]["web"]["clusters"]) == ("answered", ["lab/c-1"]), "no late word counts"
        for i in range(len(times)):
            await driver.until_phase(f"{name}-{i}", "Running")
        if behaviour == "late":
            await until(lambda: one.answered_late >= 2, what="it did answer, late")
    await driver.delete(f"{name}-{i}" for i in range(len(times)))


async def test_a_required_built_in_that_is_stopped_is_waited_for(mesh: Mesh, driver: MeshClient) -> None:
    (pid,) = mesh.pids("hpa")
    os.kill(pid, signal.SIGSTOP)
    try:
        await driver.apply(application("patient"))
        await driver.until_phase("patient", "Pending")
        why = await driver.why("patient")
        assert [(r["code"], r["by"]) for r in why["reasons"]] == [("ControllerTimeout", "hpa")]
        outcomes = {c["name"]: c["outcome"] for c in why["controllers"]}
        assert outcomes == {"hpa": "timeout", "labels": "answered", "affinity": "answered"}
        assert group("patient") not in driver.ledger.standing
    finally:
        os.kill(pid, signal.SIGCONT)
    await driver.until_phase("patient", "Running", seconds=40)
    assert mesh.pids("hpa") == [pid]
