"""The life of groups while clusters misbehave and workers die: steps are taken or refused in so many words, what moves is
there before it goes, and what ends leaves nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from moorage.bus import subjects
from moorage.model.desired import Confirm
from moorage.model.reports import PodReport, Report
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, problem_of, room
from moorage_testkit.polling import until

from .conftest import MakeMesh

FLEET = fleet(5, 8, readyDelayMs=300)
FOR_EVER = 600


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(FLEET)


async def fault(driver: MeshClient, cluster: str, what: str, seconds: float = FOR_EVER) -> None:
    answer = await driver.ask(subjects.SIM_FAULT, {"cluster": cluster, "fault": what, "seconds": seconds})
    assert answer.get("accepted"), answer


async def heal(driver: MeshClient) -> None:
    answer = await driver.ask(subjects.SIM_APPLY, FLEET, timeout=20)
    assert answer.get("accepted"), answer


async def act(driver: MeshClient, name: str, verb: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = await driver.http(f"/v1/groups/{group(name)}/{verb}", more)
    return found


async def nothing_left(driver: MeshClient) -> None:
    async def empty() -> bool:
        listed = await driver.ask(subjects.SIM_LIST, {})
        return not driver.ledger.claims and sum(row["pods"] for row in listed["items"]) == 0

    await eventually(empty, 30, "no claim and no pod is left")
    assert await driver.violations(room(FLEET)) == []


class Pods:
    """What the clusters report, as it comes: how many pods run, and how few that ever were. A report of what has become
    ready may come after the confirmation that says so: of the cluster `fresh`, these count, too."""

    def __init__(self, fresh: str = "") -> None:
        self.by_cluster: dict[str, dict[str, PodReport]] = {}
        self.fresh, self.confirmed = fresh, 0
        self.least = -1  # once watched

    def heard(self, subject: str, data: bytes) -> None:
        report = msgspec.json.decode(data, type=Report)
        pods = self.by_cluster.setdefault(subject.split(".")[3], {})
        if report.kind == "full" and report.part[0] == 0:
            pods.clear()
        pods.update({pod.uid: pod for pod in report.pods})
        for gone in report.pods_gone:
            pods.pop(gone, None)
        if self.least >= 0:
            late = max(0, self.confirmed - self.running(self.fresh)) if self.fresh else 0
            self.least = min(self.least, self.running() + late)

    def told(self, subject: str, data: bytes) -> None:
        if subject.split(".")[4] == self.fresh:
            self.confirmed = sum(one.ready for one in msgspec.json.decode(data, type=Confirm).objects)

    def running(self, cluster: str = "") -> int:
        return sum(
            pod.phase == "Running" and not pod.deleting
            for name, pods in self.by_cluster.items()
            for pod in pods.values()
            if cluster in ("", name)
        )


@asynccontextmanager
async def watched(driver: MeshClient, fresh: str = "") -> AsyncIterator[Pods]:
    pods = Pods(fresh)
    subscriptions = [
        await driver.bus.subscribe("moorage.reports.>", pods.heard),
        await driver.bus.subscribe("moorage.desired.confirm.>", pods.told),
    ]
    try:
        yield pods
    finally:
        for subscription in subscriptions:
            await subscription.unsubscribe()


@pytest.mark.parametrize("what", ["silent", "slow", "refuse", "lose-pods"])
async def test_a_whole_life_on_a_cluster_that_misbehaves(driver: MeshClient, what: str) -> None:
    name, here = f"life-{what}", "lab/c-0"
    await driver.apply(application(name, pods=2, on=here))
    await driver.until_phase(name, "Running")
    await fault(driver, here, what, 3 if what == "lose-pods" else FOR_EVER)
    assert (await driver.apply(application(name, pods=2, on=here, image="j")))["outcome"] == "updated"
    assert (await driver.apply(application(name, pods=2, on=here, image="j")))["outcome"] == "unchanged"
    assert (await act(driver, name, "stop"))["state"] == "InstantiateStopped"
    for verb in ("approve", "redecide"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            await act(driver, name, verb)
        problem = problem_of(refused.value)
        assert (problem["status"], problem["code"]) == (409, "WrongState")
        assert "is InstantiateStopped;" in problem["detail"]
    assert (await act(driver, name, "instantiate"))["state"] == "Instantiated"
    assert (await act(driver, name, "terminate"))["state"] == "Terminated"
    await driver.until_phase(name, "Terminating", "Terminated")
    assert (await act(driver, name, "instantiate"))["state"] == "Instantiated", "on its way out, and wanted again"
    await heal(driver)
    await driver.until_phase(name, "Running", seconds=30)
    await driver.delete([name])
    await nothing_left(driver)


async def test_terminated_at_any_moment_nothing_is_left(driver: MeshClient) -> None:
    """A decision may be under way, be committed just now, or be carried out already."""
    chance = random.Random(7)

    async def live(number: int) -> None:
        name = f"brief-{number}"
        for turn in range(4):
            await driver.apply(application(name, image=f"i{turn}"))
            await asyncio.sleep(chance.choice((0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)) * chance.random())
            done = await driver.ask(subjects.INTENTS_ACT, {"group": group(name), "verb": "terminate"})
            assert done["accepted"], done

    await asyncio.gather(*(live(number) for number in range(12)))

    async def ended() -> bool:
        return set((await driver.phases()).values()) == {"Terminated"}

    await eventually(ended, 30, "all are terminated")
    await nothing_left(driver)
    await driver.delete([f"brief-{number}" for number in range(12)])


@pytest.mark.parametrize("image", ["i", "j"], ids=["moved", "moved and changed"])
async def test_what_moves_is_there_before_it_goes(driver: MeshClient, image: str) -> None:
    async with watched(driver, "c-2") as pods:
        await heal(driver)
        await driver.apply(application("mover", pods=2, on="lab/c-1"))
        await driver.until_phase("mover", "Running")
        await until(lambda: pods.running("c-1") == 2, 20, "both run")
        pods.least = 2
        await fault(driver, "lab/c-2", "slow", 3)
        await driver.apply(application("mover", pods=2, on="lab/c-2", image=image))
        await until(lambda: pods.running("c-2") == 2 and pods.running("c-1") == 0, 30, "both run elsewhere")
        assert pods.least == 2, "never less than both"
        await driver.delete(["mover"])
    await nothing_left(driver)


async def test_what_changes_in_place_is_there_all_the_time(driver: MeshClient) -> None:
    async with watched(driver) as pods:
        await driver.apply(application("roller", pods=3, on="lab/c-3"))
        await driver.until_phase("roller", "Running")
        await until(lambda: pods.running("c-3") == 3, 20, "all run")
        before = set(pods.by_cluster["c-3"])
        pods.least = 3
        await driver.apply(application("roller", pods=3, on="lab/c-3", image="j"))
        await until(lambda: pods.running("c-3") == 3 and not before & set(pods.by_cluster["c-3"]), 30, "all are new")
        assert pods.least == 3
        await driver.delete(["roller"])
    await nothing_left(driver)


def resources(version: str, where: str) -> list[tuple[str, dict[str, Any]]]:
    """POSTs that make a group of one app, on one cluster."""
    app = f"/v2/projects/lives/composite-apps/shop/{version}"
    manifest = application("x", pods=2)["spec"]["apps"][0]["manifests"][0]
    manifest = {**manifest, "metadata": {"name": f"web-{version}"}}
    spot = {"allOf": [{"clusterProvider": "lab", "cluster": where}]}
    groups, placements = (
        f"{app}/deployment-intent-groups",
        f"{app}/deployment-intent-groups/g/generic-placement-intents",
    )
    return [
        (
            "/v2/projects/lives/composite-apps",
            {"metadata": {"name": "shop"}, "spec": {"compositeAppVersion": version}},
        ),
        (f"{app}/apps", {"metadata": {"name": "web"}, "spec": {"manifests": [manifest]}}),
        (groups, {"metadata": {"name": "g"}}),
        (placements, {"metadata": {"name": "p"}}),
        (f"{placements}/p/app-intents", {"metadata": {"name": "i"}, "spec": {"app": "web", "intent": spot}}),
        (f"{groups}/g/approve", {}),
    ]


async def test_a_group_that_is_replaced_ends_when_the_other_one_runs(driver: MeshClient) -> None:
    await driver.http("/v2/projects", {"metadata": {"name": "lives"}})
    for version, where in (("v1", "c-1"), ("v2", "c-2")):
        for path, body in resources(version, where):
            await driver.http(path, body)
    old, new = (f"/v2/projects/lives/composite-apps/shop/{v}/deployment-intent-groups/g" for v in ("v1", "v2"))
    async with watched(driver, "c-2") as pods:
        await heal(driver)
        await driver.http(f"{old}/instantiate", {})
        await until(lambda: pods.running("c-1") == 2, 20, "the old one runs")
        pods.least = 2
        await fault(driver, "lab/c-2", "slow", 3)
        await driver.http(f"{old}/migrate", {"spec": {"targetCompositeAppVersion": "v2", "targetDigName": "g"}})
        await until(lambda: pods.running("c-2") == 2 and pods.running("c-1") == 0, 30, "the new one runs alone")
        assert pods.least == 2
    await driver.http(f"{new}/terminate", {})
    await nothing_left(driver)


async def test_what_is_deleted_goes_whoever_dies(driver: MeshClient) -> None:
    """The cluster is silent, so it lasts; gateway and intent store die meanwhile, and nobody asks a second time."""
    mesh, here = driver.mesh, "lab/c-4"
    await driver.apply(application("leaver", on=here))
    await driver.until_phase("leaver", "Running")
    await fault(driver, here, "silent")
    assert (await driver.http("/v1/applications/default/leaver", method="DELETE"))["phase"] == "Terminating"
    assert (await driver.http("/v1/applications/default/leaver", method="DELETE"))["phase"] == "Terminating"
    for worker in ("gateway", "intents"):
        before = mesh.pids(worker)
        mesh.kill(worker)
        await until(lambda w=worker, b=before: mesh.pids(w) not in ([], b), 20, f"{worker} is there again")  # type: ignore[misc]
    await driver.until_phase("leaver", "Terminating")
    await heal(driver)
    await driver.until_phase("leaver", "Gone")
    await nothing_left(driver)


async def test_who_wants_it_again_keeps_it(driver: MeshClient) -> None:
    here = "lab/c-4"
    await driver.apply(application("returner", on=here))
    await driver.until_phase("returner", "Running")
    await fault(driver, here, "silent")
    await driver.http("/v1/applications/default/returner", method="DELETE")
    await driver.apply(application("returner", on=here))
    await heal(driver)
    await driver.until_phase("returner", "Running")
    await asyncio.sleep(6)  # longer than the intent store takes to look again
    assert await driver.phase("returner") == "Running"
    await driver.delete(["returner"])
    await nothing_left(driver)


async def test_who_dies_with_a_request_in_hand_is_not_waited_for(driver: MeshClient) -> None:
    mesh = driver.mesh
    await driver.apply(application("held"))
    pids = mesh.pids("intents")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    sent = asyncio.ensure_future(driver.http("/v1/apply", application("held", image="j")))
    await asyncio.sleep(0.3)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    try:
        assert (await sent)["accepted"]
    except urllib.error.HTTPError as error:
        assert (error.code, error.headers["Retry-After"]) == (503, "1")
    assert time.monotonic() - started < 4
    await driver.apply(application("held", image="j"))
    await driver.delete(["held"])
    await nothing_left(driver)
