"""Takes groups through their life cycle while clusters misbehave and workers die: moves start the new placement first, and
ended groups leave nothing."""

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
from moorage.model.reports import PodReport, Report
from moorage.model.status import Confirm
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet, group, problem_of, room
from moorage_testkit.polling import until

from .conftest import MakeMesh

FLEET = fleet(6, 8, readyDelayMs=300)
SLOW = "c-5"
FLEET["clusters"][5]["behaviour"] = {"readyDelayMs": 4000}
FOR_EVER = 600


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(FLEET)


async def fault(driver: MeshClient, cluster: str, what: str, seconds: float = FOR_EVER) -> None:
    answer = await driver.ask(subjects.SIM_FAULT, {"cluster": cluster, "fault": what, "seconds": seconds})
    assert answer.get("accepted"), answer


async def end_faults(driver: MeshClient) -> None:
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
    """Counts the pods that clusters report as running, and the fewest that ever ran. On the cluster `fresh`, confirmed pods count,
    too, because their report may come later."""

    def __init__(self, fresh: str = "") -> None:
        self.by_cluster: dict[str, dict[str, PodReport]] = {}
        self.fresh, self.confirmed = fresh, 0
        self.least = -1  # since it is watched

    def on_report(self, subject: str, data: bytes) -> None:
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

    def on_confirmation(self, subject: str, data: bytes) -> None:
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
async def watched_pods(driver: MeshClient, fresh: str = "") -> AsyncIterator[Pods]:
    pods = Pods(fresh)
    subscriptions = [
        await driver.bus.subscribe("moorage.reports.>", pods.on_report),
        await driver.bus.subscribe("moorage.desired.confirm.>", pods.on_confirmation),
    ]
    try:
        yield pods
    finally:
        for subscription in subscriptions:
            await subscription.unsubscribe()


@pytest.mark.parametrize("what", ["silent", "slow", "refuse", "lose-pods"])
async def test_a_full_life_cycle_on_a_misbehaving_cluster(driver: MeshClient, what: str) -> None:
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
    await end_faults(driver)
    await driver.until_phase(name, "Running", seconds=30)
    await driver.delete([name])
    await nothing_left(driver)


async def test_terminating_at_any_moment_leaves_nothing(driver: MeshClient) -> None:
    """A decision may be under way, just committed, or already applied."""
    chance = random.Random(7)

    async def live(number: int) -> None:
        name = f"brief-{number}"
        for attempt in range(4):
            await driver.apply(application(name, image=f"i{attempt}"))
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
async def test_a_move_starts_the_new_placement_before_removing_the_old(driver: MeshClient, image: str) -> None:
    async with watched_pods(driver, "c-2") as pods:
        await end_faults(driver)
        await driver.apply(application("mover", pods=2, on="lab/c-1"))
        await driver.until_phase("mover", "Running")
        await until(lambda: pods.running("c-1") == 2, 40, "both run")
        pods.least = 2
        await fault(driver, "lab/c-2", "slow", 3)
        await driver.apply(application("mover", pods=2, on="lab/c-2", image=image))
        await until(lambda: pods.running("c-2") == 2 and pods.running("c-1") == 0, 30, "both run elsewhere")
        assert pods.least == 2, "never less than both"
        await driver.delete(["mover"])
    await nothing_left(driver)


async def test_an_update_in_place_keeps_pods_running(driver: MeshClient) -> None:
    async with watched_pods(driver) as pods:
        await driver.apply(application("roller", pods=3, on="lab/c-3"))
        await driver.until_phase("roller", "Running")
        await until(lambda: pods.running("c-3") == 3, 40, "all run")
        before = set(pods.by_cluster["c-3"])
        pods.least = 3
        await driver.apply(application("roller", pods=3, on="lab/c-3", image="j"))
        await until(lambda: pods.running("c-3") == 3 and not before & set(pods.by_cluster["c-3"]), 30, "all are new")
        assert pods.least == 3
        await driver.delete(["roller"])
    await nothing_left(driver)


def resources(
    version: str, where: str, name: str = "", image: str = "i", app_name: str = "shop", cpu: str = "1"
) -> list[tuple[str, dict[str, Any]]]:
    """Creates a group of one app on one cluster over /v2."""
    app = f"/v2/projects/lives/composite-apps/{app_name}/{version}"
    manifest = application("x", pods=2, image=image, cpu=cpu)["spec"]["apps"][0]["manifests"][0]
    manifest = {**manifest, "metadata": {"name": name or f"web-{version}"}}
    if name:
        manifest["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    spot = {"allOf": [{"clusterProvider": "lab", "cluster": where}]}
    groups, placements = (
        f"{app}/deployment-intent-groups",
        f"{app}/deployment-intent-groups/g/generic-placement-intents",
    )
    return [
        (
            "/v2/projects/lives/composite-apps",
            {"metadata": {"name": app_name}, "spec": {"compositeAppVersion": version}},
        ),
        (f"{app}/apps", {"metadata": {"name": "web"}, "spec": {"manifests": [manifest]}}),
        (groups, {"metadata": {"name": "g"}}),
        (placements, {"metadata": {"name": "p"}}),
        (f"{placements}/p/app-intents", {"metadata": {"name": "i"}, "spec": {"app": "web", "intent": spot}}),
        (f"{groups}/g/approve", {}),
    ]


async def make_project(driver: MeshClient) -> None:
    try:
        await driver.http("/v2/projects", {"metadata": {"name": "lives"}})
    except urllib.error.HTTPError as error:
        assert error.code == 409, error


async def test_a_replaced_group_ends_when_its_replacement_runs(driver: MeshClient) -> None:
    await make_project(driver)
    for version, where in (("v1", "c-1"), ("v2", "c-2")):
        for path, body in resources(version, where):
            await driver.http(path, body)
    old, new = (f"/v2/projects/lives/composite-apps/shop/{v}/deployment-intent-groups/g" for v in ("v1", "v2"))
    async with watched_pods(driver, "c-2") as pods:
        await end_faults(driver)
        await driver.http(f"{old}/instantiate", {})
        await until(lambda: pods.running("c-1") == 2, 40, "the old one runs")
        pods.least = 2
        await fault(driver, "lab/c-2", "slow", 3)
        await driver.http(f"{old}/migrate", {"spec": {"targetCompositeAppVersion": "v2", "targetDigName": "g"}})
        await until(lambda: pods.running("c-2") == 2 and pods.running("c-1") == 0, 30, "the new one runs alone")
        assert pods.least == 2
    await driver.http(f"{new}/terminate", {})
    await nothing_left(driver)


async def status_of(driver: MeshClient, group_path: str) -> dict[str, Any]:
    found: dict[str, Any] = await driver.http(f"{group_path}/status", method="GET")
    return found


@pytest.mark.parametrize("how", ["it runs", "it is given up", "workers die"])
async def test_a_group_takes_over_the_objects_of_another_on_a_full_cluster(driver: MeshClient, how: str) -> None:
    """Both have a Deployment of the same name, which takes three quarters of the cluster: it is updated in place, or goes back."""
    app_name = {"it runs": "till", "it is given up": "desk", "workers die": "shelf"}[how]
    await make_project(driver)
    for version, image in (("v1", "i"), ("v2", "j")):
        for path, body in resources(version, SLOW, "till", image, app_name, cpu="3"):
            await driver.http(path, body)
    old, new = (f"/v2/projects/lives/composite-apps/{app_name}/{v}/deployment-intent-groups/g" for v in ("v1", "v2"))
    async with watched_pods(driver, SLOW) as pods:

        def claims() -> set[str]:
            return {pod.claim for pod in pods.by_cluster[SLOW].values()}

        await end_faults(driver)
        await driver.http(f"{old}/instantiate", {})
        await until(lambda: pods.running(SLOW) == 2, 60, "the old one runs")
        await eventually(lambda: reached_phase(driver, old, "Running"), 60, "and says so")
        first = claims()
        pods.least = 2
        await driver.http(f"{old}/migrate", {"spec": {"targetCompositeAppVersion": "v2", "targetDigName": "g"}})
        for worker in ("merger", "patcher", "intents") if how == "workers die" else ():
            driver.mesh.kill(worker)
            await asyncio.sleep(0.3)
        if how == "it is given up":
            await until(lambda: claims() > first, 60, "it has begun")
            await fault(driver, f"lab/{SLOW}", "silent")  # so that nobody is told that it runs
            await driver.http(f"{new}/terminate", {})
            await end_faults(driver)
            await eventually(lambda: reached_phase(driver, new, "Terminated"), 60, "the new one ended")
            await until(lambda: claims() == first and pods.running(SLOW) == 2, 60, "the old pods are back")
            await eventually(lambda: reached_phase(driver, old, "Running"), 60, "the old one runs")
        else:
            await eventually(lambda: reached_phase(driver, old, "Terminated"), 60, "the old one ended")
            await until(lambda: not first & claims() and pods.running(SLOW) == 2, 60, "the new one runs alone")
            await eventually(lambda: reached_phase(driver, new, "Running"), 60, "and says so")
        assert pods.least >= 1, "one pod after the other was replaced"
    await driver.http(f"{old if how == 'it is given up' else new}/terminate", {})
    await nothing_left(driver)


async def reached_phase(driver: MeshClient, group_path: str, phase: str) -> bool:
    return bool((await status_of(driver, group_path))["phase"] == phase)


async def test_a_deletion_survives_crashes(driver: MeshClient) -> None:
    """The deletion takes long because the cluster is silent; gateway and intent store are killed meanwhile, and the client does not repeat it."""
    mesh, here = driver.mesh, "lab/c-4"
    await driver.apply(application("leaver", on=here))
    await driver.until_phase("leaver", "Running")
    await fault(driver, here, "silent")
    assert (await driver.http("/v1/applications/default/leaver", method="DELETE"))["phase"] == "Terminating"
    assert (await driver.http("/v1/applications/default/leaver", method="DELETE"))["phase"] == "Terminating"
    for worker in ("gateway", "intents"):
        before = mesh.pids(worker)
        mesh.kill(worker)
        await until(lambda w=worker, b=before: mesh.pids(w) not in ([], b), 40, f"{worker} is there again")  # type: ignore[misc]
    await driver.until_phase("leaver", "Terminating")
    await end_faults(driver)
    await driver.until_phase("leaver", "Gone")
    await nothing_left(driver)


async def test_applying_again_cancels_a_pending_deletion(driver: MeshClient) -> None:
    here = "lab/c-4"
    await driver.apply(application("returner", on=here))
    await driver.until_phase("returner", "Running")
    await fault(driver, here, "silent")
    await driver.http("/v1/applications/default/returner", method="DELETE")
    await driver.apply(application("returner", on=here))
    await end_faults(driver)
    await driver.until_phase("returner", "Running")
    await asyncio.sleep(6)  # longer than the retry interval of the intent store
    assert await driver.phase("returner") == "Running"
    await driver.delete(["returner"])
    await nothing_left(driver)


async def test_a_worker_killed_while_it_handles_a_request_is_not_waited_for(driver: MeshClient) -> None:
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
    assert time.monotonic() - started < 10
    await driver.apply(application("held", image="j"))
    await driver.delete(["held"])
    await nothing_left(driver)
