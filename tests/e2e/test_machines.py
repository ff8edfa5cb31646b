"""Slots of machines in a simulated fleet, used from outside: applications run in them, wait for them and give them back."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moorage.bus import Bus
from moorage.ledger import open_ledger
from moorage.machine_groups.windows import AHEAD
from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import until

SLOTS = {"group": "general", "type": "large", "slots": 2, "cpu": 4, "memory": "8Gi", "taint": True}


def fleet(file: Path, slots: int = 2, **changes: Any) -> str:
    nodes = [
        {
            "name": "n",
            "count": 2,
            "allocatable": {"cpu": "8", "memory": "64Gi"},
            "machines": [SLOTS | {"slots": slots} | changes],
        },
        {"name": "plain", "allocatable": {"cpu": "8", "memory": "64Gi"}},
    ]
    clusters = [{"name": name, "provider": "lab", "nodes": nodes} for name in ("a", "b")]
    file.write_text(json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": clusters}))
    return str(file)


def application(name: str, replicas: int, *needs: dict[str, Any], machine: str = "general/large") -> dict[str, Any]:
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "i"}]},
            },
        },
    }
    consumer = {
        "object": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "container": "main",
        "needs": [{"machine": machine}, *needs],
    }
    spec = {"apps": [{"name": "web", "manifests": [manifest], "consumers": [consumer]}]}
    return {"kind": "Application", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    with Mesh("--fleet", fleet(tmp_path_factory.mktemp("fleet") / "fleet.json")) as found:
        yield found


def slots(mesh: Mesh) -> Counter[tuple[str, str]]:
    return Counter((slot["cluster"], slot["state"]) for slot in mesh.http("/v1/slots")["items"])


def phase(mesh: Mesh, name: str) -> str:
    return str(mesh.http(f"/v1/groups/default/{name}/v1/default")["phase"])


def reserved(mesh: Mesh, count: int = 4) -> bool:
    return slots(mesh) == {("lab/a", "reserved"): count, ("lab/b", "reserved"): count}


def remove(mesh: Mesh, name: str) -> None:
    done = mesh.run("delete", "application", name)
    assert done.returncode == 0, done.stderr.decode()


async def test_an_application_runs_in_slots_and_gives_them_back(mesh: Mesh) -> None:
    await until(lambda: reserved(mesh))
    mesh.http("/v1/apply", application("one", 3))
    await until(lambda: phase(mesh, "one") == "Running")
    (cluster,) = mesh.http("/v1/groups/default/one/v1/default")["apps"]["web"]["clusters"]
    await until(lambda: slots(mesh)[cluster, "used"] == 3)

    def guests() -> set[tuple[str, str]]:
        return {(guest["state"], guest["group"]) for guest in mesh.http("/v1/guests")["items"]}

    await until(lambda: guests() == {("used", "default/one/v1/default")})
    machine = mesh.http("/v1/machines")["items"][0]
    assert machine["status"]["availableMachines"][0]["usage"]["maximum"] == 4

    def used() -> dict[str, str]:
        return {n["name"]: n["used"].get("cpu", "0") for n in mesh.http("/v1/nodes?cluster=" + cluster)["items"]}

    await until(
        lambda: used() == {"n-0": "8", "n-1": "8", "plain": "0"}, what="guests are in the slots, all count once"
    )
    remove(mesh, "one")
    await until(lambda: reserved(mesh))


async def test_what_finds_no_slot_waits_with_numbers_until_one_is_free(mesh: Mesh) -> None:
    await until(lambda: reserved(mesh))
    for name, count, wanted in (("first", 4, "Running"), ("second", 3, "Running"), ("third", 2, "Pending")):
        mesh.http("/v1/apply", application(name, count))
        await until(lambda name=name, wanted=wanted: phase(mesh, name) == wanted)  # type: ignore[misc]

    def short() -> list[tuple[str, str, int]]:
        reasons = mesh.http("/v1/groups/default/third/v1/default/why").get("reasons", [])
        return [(r["needed"], r["free"], r["clusters"]) for r in reasons if r["code"] == "SlotShort"]

    await until(lambda: ("2", "1", 2) in short(), what="it is told why")
    remove(mesh, "first")
    await until(lambda: phase(mesh, "third") == "Running")
    for name in ("second", "third"):
        remove(mesh, name)
    await until(lambda: reserved(mesh))


async def test_an_unknown_machine_is_told(mesh: Mesh) -> None:
    mesh.http("/v1/apply", application("lost", 1, machine="no/such"))
    await until(lambda: phase(mesh, "lost") == "Pending")

    def codes() -> set[str]:
        reasons = mesh.http("/v1/groups/default/lost/v1/default/why").get("reasons", [])
        return {reason["code"] for reason in reasons}

    await until(lambda: bool(codes() & {"MachineUnknown", "SlotShort"}))
    remove(mesh, "lost")


async def test_applications_that_come_and_go_never_share_a_slot(mesh: Mesh) -> None:
    rng = random.Random(7)
    await until(lambda: reserved(mesh))
    there: set[str] = set()
    for step in range(14):
        if there and rng.random() < 0.4:
            name = rng.choice(sorted(there))
            there.discard(name)
            remove(mesh, name)
        else:
            there.add(name := f"app-{step}")
            mesh.http("/v1/apply", application(name, rng.randint(1, 3)))
        held = [s for s in mesh.http("/v1/slots")["items"] if s["state"] in ("used", "granted")]
        per_node = Counter((s["cluster"], s["node"]) for s in held)
        assert all(count <= 2 for count in per_node.values()), per_node
        for node in mesh.http("/v1/nodes")["items"]:
            assert int(node["used"].get("cpu", "0")) <= 8
    await until(lambda: all(phase(mesh, name) in ("Running", "Pending") for name in there))
    for name in there:
        remove(mesh, name)
    await until(lambda: reserved(mesh))


def test_a_fleet_file_with_two_sizes_of_a_type_is_refused(mesh: Mesh, tmp_path: Path) -> None:
    document = json.loads(Path(fleet(tmp_path / "fleet.json")).read_text())
    document["clusters"][0]["nodes"].append(
        {"name": "x", "allocatable": {"cpu": "8"}, "machines": [SLOTS | {"cpu": 2}]}
    )
    (tmp_path / "fleet.json").write_text(json.dumps(document))
    done = mesh.run("fleet", "apply", str(tmp_path / "fleet.json"), "--yes")
    assert done.returncode == 1 and "two sizes of the machine type general/large" in done.stderr.decode()


async def test_nodes_in_maintenance_lose_their_unused_slots(mesh: Mesh, tmp_path: Path) -> None:
    await until(lambda: reserved(mesh))
    done = mesh.run("fleet", "apply", fleet(tmp_path / "fleet.json", mode="maintenance"), "--yes")
    assert done.returncode == 0, done.stderr.decode()
    await until(lambda: slots(mesh) == {("lab/a", "short"): 4, ("lab/b", "short"): 4})
    done = mesh.run("fleet", "apply", fleet(tmp_path / "fleet.json"), "--yes")
    assert done.returncode == 0, done.stderr.decode()
    await until(lambda: reserved(mesh))


def machine_document(available: int) -> dict[str, Any]:
    return {
        "apiVersion": "imperator.tenzen-y.io/v1alpha1",
        "kind": "Machine",
        "metadata": {"name": "shared", "labels": {"imperator.tenzen-y.io/machine-group": "shared"}},
        "spec": {
            "nodePool": [
                {"name": "plain", "cluster": name, "mode": "ready", "taint": True, "machineType": [{"name": "small"}]}
                for name in ("lab/a", "lab/b")
            ],
            "machineTypes": [{"name": "small", "spec": {"cpu": "2", "memory": "4Gi"}, "available": available}],
        },
    }


async def test_a_machine_document_holds_slots_in_several_clusters(mesh: Mesh, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(json.dumps(machine_document(6)))
    done = mesh.run("apply", "-f", str(tmp_path / "machine.json"))
    assert done.returncode == 0 and b"machine/shared created" in done.stdout, done.stderr.decode()
    assert b"machine/shared unchanged" in mesh.run("apply", "-f", str(tmp_path / "machine.json")).stdout

    def held() -> Counter[str]:
        items = mesh.http("/v1/slots?machine=shared/small")["items"]
        return Counter(f"{slot['cluster']} {slot['node']} {slot['state']}" for slot in items)

    await until(lambda: held() == {"lab/a plain reserved": 4, "lab/b plain reserved": 2}, what="six slots on two nodes")

    def plain() -> dict[str, str]:
        nodes = [n for n in mesh.http("/v1/nodes")["items"] if n["name"] == "plain"]
        return {n["cluster"]: n["used"].get("cpu", "0") for n in nodes}

    await until(lambda: plain() == {"lab/a": "8", "lab/b": "4"}, what="the reservations run")
    mesh.http("/v1/apply", application("wide", 2, machine="shared/small"))
    await until(lambda: phase(mesh, "wide") == "Running")
    await until(lambda: plain() == {"lab/a": "8", "lab/b": "4"}, what="guests take no more than the slots")

    def machine() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(mesh.run("get", "machine", "shared", "-o", "json").stdout)
        return found

    await until(lambda: machine()["status"]["availableMachines"][0]["usage"]["used"] == 2, what="its status follows")
    assert machine()["origin"] == "mesh"
    # Its pool is made of it, and can be applied only as it is.
    stock = [{"name": "small"}]
    spec = {"machineGroup": "shared", "nodePool": machine_document(6)["spec"]["nodePool"], "machineTypeStock": stock}
    pool = {"apiVersion": "imperator.io/v1alpha1", "kind": "MachineNodePool", "metadata": {"name": "shared-node-pool"}, "spec": spec}  # fmt: skip
    (tmp_path / "pool.json").write_text(json.dumps(pool))
    done = mesh.run("apply", "-f", str(tmp_path / "pool.json"))
    assert b"shared-node-pool unchanged" in done.stdout, done.stderr.decode()
    spec["machineTypeStock"] = []
    (tmp_path / "pool.json").write_text(json.dumps(pool))
    done = mesh.run("apply", "-f", str(tmp_path / "pool.json"))
    assert done.returncode == 4 and b"change spec.nodePool there" in done.stderr, done.stderr.decode()
    remove(mesh, "wide")
    done = mesh.run("delete", "machine", "shared")
    assert done.returncode == 0, done.stderr.decode()
    await until(lambda: plain() == {"lab/a": "0", "lab/b": "0"} and not held(), what="nothing is held any more")
    await until(lambda: mesh.run("get", "machine", "shared").returncode == 3, what="it is not shown any more")


async def test_applications_run_in_types_that_live_in_slots_of_another(mesh: Mesh, tmp_path: Path) -> None:
    document = machine_document(3)
    half = {"name": "half", "spec": {"dependence": {"machineType": "small", "availableRatio": 0.5}}}
    document["spec"]["machineTypes"].append(half)
    (tmp_path / "machine.json").write_text(json.dumps(document))
    done = mesh.run("apply", "-f", str(tmp_path / "machine.json"))
    assert done.returncode == 0, done.stderr.decode()

    def held(kind: str) -> Counter[str]:
        return Counter(slot["state"] for slot in mesh.http(f"/v1/slots?machine=shared/{kind}")["items"])

    await until(lambda: held("small") == {"reserved": 3})

    def free() -> list[int]:
        rows = mesh.http("/v1/machines/shared")["status"]["availableMachines"]
        return [row["usage"]["reserved"] for row in rows]

    await until(lambda: free() == [3, 6], what="in a cluster without slots none are reserved")
    mesh.http("/v1/apply", application("halves", 3, machine="shared/half"))
    await until(lambda: phase(mesh, "halves") == "Running")
    await until(lambda: held("half") == {"used": 3, "reserved": 1})
    await until(lambda: held("small") == {"used": 2, "reserved": 1})
    mesh.http("/v1/apply", application("wholes", 2, machine="shared/small"))
    await until(lambda: phase(mesh, "wholes") == "Pending")

    def reasons() -> set[tuple[str, str, str]]:
        found = mesh.http("/v1/groups/default/wholes/v1/default/why").get("reasons", [])
        return {(reason["code"], reason.get("needed", ""), reason.get("free", "")) for reason in found}

    await until(lambda: ("SlotShort", "2", "1") in reasons())
    mesh.http("/v1/apply", application("halves", 2, machine="shared/half"))  # both in one slot, or one on each
    await until(lambda: held("half")["used"] == 2)
    remove(mesh, "halves")
    await until(lambda: phase(mesh, "wholes") == "Running")
    remove(mesh, "wholes")
    assert mesh.run("delete", "machine", "shared").returncode == 0
    await until(lambda: not held("small"))


async def test_a_machine_is_for_those_whom_its_document_allows(mesh: Mesh, tmp_path: Path) -> None:
    def apply(**allow: list[str]) -> None:
        document = machine_document(1)
        document["spec"]["allow"] = allow
        (tmp_path / "machine.json").write_text(json.dumps(document))
        done = mesh.run("apply", "-f", str(tmp_path / "machine.json"))
        assert done.returncode == 0, done.stderr.decode()

    def refusal(name: str) -> str:
        reasons = mesh.http(f"/v1/groups/default/{name}/v1/default/why").get("reasons", [])
        return next((r["message"] for r in reasons if r["code"] == "NotAllowed"), "")

    apply(projects=["others"])
    await until(lambda: bool(mesh.http("/v1/slots?machine=shared/small")["items"]))
    mesh.http("/v1/apply", application("stranger", 1, machine="shared/small"))
    await until(lambda: refusal("stranger") == "shared/small is for project others only; this is project default")
    apply(projects=["others", "default"])
    await until(lambda: phase(mesh, "stranger") == "Running")
    remove(mesh, "stranger")
    apply(namespaces=["team"])
    mesh.http("/v1/apply", application("alien", 1, machine="shared/small"))
    text = "shared/small is for namespace team only; this is project default, namespace default"
    await until(lambda: refusal("alien") == text)
    remove(mesh, "alien")
    friend = application("friend", 1, machine="shared/small")
    friend["spec"]["apps"][0]["manifests"][0]["metadata"]["namespace"] = "team"
    mesh.http("/v1/apply", friend)
    await until(lambda: phase(mesh, "friend") == "Running")
    remove(mesh, "friend")
    assert mesh.run("delete", "machine", "shared").returncode == 0
    await until(lambda: not mesh.http("/v1/slots?machine=shared/small")["items"])


async def test_a_window_lets_its_guests_in_and_ends_them(mesh: Mesh, tmp_path: Path) -> None:
    """Checks that a window begins by the clock alone, while nothing else happens."""
    begin = int(time.time()) + AHEAD + 15
    end = begin + 20

    def text(at: float) -> str:
        return datetime.fromtimestamp(at, UTC).isoformat()

    document = machine_document(1)
    document["spec"]["machineTypes"][0]["windows"] = [
        {"name": "w", "slots": 1, "from": text(begin), "until": text(end)}
    ]
    (tmp_path / "machine.json").write_text(json.dumps(document))
    assert mesh.run("apply", "-f", str(tmp_path / "machine.json")).returncode == 0
    await until(lambda: [s["state"] for s in mesh.http("/v1/slots?machine=shared/small")["items"]] == ["reserved"])
    mesh.http("/v1/apply", application("plain", 1, machine="shared/small"))
    wanted = application("timed", 1, machine="shared/small")
    (app,) = wanted["spec"]["apps"]
    app["consumers"][0]["needs"][0]["window"] = "w"
    app["manifests"][0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 0
    mesh.http("/v1/apply", wanted)

    def guests() -> dict[str, dict[str, Any]]:
        return {g["uid"]: g for g in mesh.http("/v1/guests?machine=shared/small")["items"]}

    await until(lambda: len(guests()) == 1 and phase(mesh, "plain") == "Pending", what="the slot is kept")
    (uid,) = guests()
    bus = await Bus.connect(mesh.settings, worker="admin")
    follower = await open_ledger(bus)
    await until(lambda: uid in follower.ledger.machines.granted, AHEAD + 30, "its slot is committed")
    assert begin - AHEAD <= follower.ledger.machines.granted[uid].at < begin, "ahead"
    await until(lambda: bool(guests()[uid]["grantedAt"]), AHEAD + 30, "it is let in")
    assert begin <= guests()[uid]["grantedAt"] / 1000, "never before"
    await bus.close()
    await until(lambda: uid not in guests(), 60, "it is ended")
    await until(
        lambda: any(g["reason"] == "WindowLate" for g in guests().values()), 30, "the next is told that it is late"
    )
    assert not any(g["grantedAt"] for g in guests().values() if g["window"]), "it is not let in to end at once"
    await until(lambda: phase(mesh, "plain") == "Running", 60, "the slot is anyone's again")
    for name in ("plain", "timed"):
        remove(mesh, name)
    assert mesh.run("delete", "machine", "shared").returncode == 0


async def test_every_violation_of_a_machine_document_is_told(mesh: Mesh, tmp_path: Path) -> None:
    document = machine_document(-1)
    document["spec"]["machineTypes"][0]["spec"]["cpu"] = "-5"
    document["spec"]["nodePool"][0]["machineType"] = [{"name": "huge"}]
    (tmp_path / "machine.json").write_text(json.dumps(document))
    done = mesh.run("apply", "-f", str(tmp_path / "machine.json"))
    text = done.stderr.decode()
    assert done.returncode == 1
    for path in ("machineTypes[0].available", "machineTypes[0].spec.cpu", "nodePool[0].machineType[0].name"):
        assert path in text


async def test_slots_guests_and_pools_are_listed_by_name(mesh: Mesh) -> None:
    await until(lambda: reserved(mesh))
    mesh.http("/v1/apply", application("named", 1))
    await until(lambda: [g["state"] for g in mesh.http("/v1/guests")["items"]] == ["used"])

    def got(*arguments: str) -> list[str]:
        done = mesh.run("get", *arguments, "-o", "name")
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().split()

    (guest,) = got("guests")
    cluster, node = mesh.http("/v1/guests")["items"][0]["cluster"], mesh.http("/v1/guests")["items"][0]["node"]
    await until(lambda: len(got("slots", "general/large")) == 8 and len(got("slots")) == 8)
    assert got("slots", f"general/large/{cluster}") == sorted(got("slots", "--cluster", cluster))
    assert got(f"slot/general/large/{cluster}/{node}") == [f"slot/general/large/{cluster}/{node}"] * 2
    assert got(guest) == [guest] and got("guests", guest.rpartition("/")[2]) == [guest]
    assert got("guests", "--cluster", "lab/a" if cluster == "lab/b" else "lab/b") == []
    pools = ["machinenodepool/lab/a/general-node-pool", "machinenodepool/lab/b/general-node-pool"]
    await until(lambda: got("machinenodepools") == pools)
    pool = json.loads(mesh.run("get", "machinenodepool", "lab/a/general-node-pool", "-o", "json").stdout)
    assert pool["spec"]["machineGroup"] == "general" and pool["spec"]["machineTypeStock"] == [{"name": "large"}]
    assert {(n["name"], n["condition"]) for n in pool["status"]["nodePool"]} == {("n-0", "Ready"), ("n-1", "Ready")}
    for kind, name in (("slots", "general/none"), ("guests", "nobody"), ("machinenodepool", "lab/a/general")):
        done = mesh.run("get", kind, name)
        assert done.returncode == 3 and name in done.stderr.decode()
    assert "n-0" in mesh.run("describe", "machine", "lab/a/general").stdout.decode()
    remove(mesh, "named")


async def test_an_update_and_a_rollback_of_pods_in_slots_run_through(mesh: Mesh) -> None:
    await until(lambda: reserved(mesh))
    mesh.http("/v1/apply", application("rolled", 2))
    await until(lambda: phase(mesh, "rolled") == "Running")

    def guests() -> set[str]:
        return {guest["name"] for guest in mesh.http("/v1/guests")["items"]}

    await until(lambda: len(guests()) == 2)
    before = guests()
    changed = application("rolled", 2)
    template = changed["spec"]["apps"][0]["manifests"][0]["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "j"
    mesh.http("/v1/apply", changed)
    await until(lambda: len(guests()) == 2 and not guests() & before, what="the older pods are replaced")
    updated = guests()
    assert mesh.run("rollback", "rolled").returncode == 0
    await until(lambda: len(guests()) == 2 and not guests() & updated, what="they are replaced again")
    remove(mesh, "rolled")
    await until(lambda: reserved(mesh))


def daemon_set(name: str, *, tolerates: bool = False) -> dict[str, Any]:
    document = application(name, 1)
    (app,) = document["spec"]["apps"]
    (manifest,) = app["manifests"]
    manifest["kind"] = app["consumers"][0]["object"]["kind"] = "DaemonSet"
    del manifest["spec"]["replicas"]
    if tolerates:
        manifest["spec"]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    return document


@pytest.mark.parametrize("tolerates", [False, True])
async def test_a_daemon_set_has_a_slot_on_each_node_of_its_machine(mesh: Mesh, tolerates: bool) -> None:
    """Kubernetes would make no pods for the nodes of the pool, whose taints its manifest does not tolerate, and, if it did tolerate them,
    some for nodes without slots."""
    await until(lambda: reserved(mesh))
    name = f"everywhere-{tolerates}".lower()
    mesh.http("/v1/apply", daemon_set(name, tolerates=tolerates))
    await until(lambda: phase(mesh, name) == "Running")
    (cluster,) = mesh.http(f"/v1/groups/default/{name}/v1/default")["apps"]["web"]["clusters"]

    def used() -> list[tuple[str, str, str]]:
        return sorted((g["cluster"], g["node"], g["state"]) for g in mesh.http("/v1/guests")["items"])

    await until(lambda: used() == [(cluster, "n-0", "used"), (cluster, "n-1", "used")])
    await until(lambda: slots(mesh)[cluster, "used"] == 2)
    remove(mesh, name)
    await until(lambda: reserved(mesh))


async def test_a_requirement_of_v2_is_a_slot(mesh: Mesh) -> None:
    await until(lambda: reserved(mesh))
    rest = HttpClient(mesh)
    manifest = application("web", 3)["spec"]["apps"][0]["manifests"]
    apps = "/projects/emco/composite-apps"
    group = f"{apps}/shop/v1/deployment-intent-groups/dig"
    consumers = f"{group}/hpa-intents/slots/hpa-resource-consumers"
    rest.must(201, "POST", "/projects", {"metadata": {"name": "emco"}})
    rest.must(201, "POST", apps, {"metadata": {"name": "shop"}, "spec": {"compositeAppVersion": "v1"}})
    rest.must(201, "POST", f"{apps}/shop/v1/apps", {"metadata": {"name": "web"}, "spec": {"manifests": manifest}})
    rest.must(201, "POST", group.rpartition("/")[0], {"metadata": {"name": "dig"}, "spec": {"version": "r1"}})
    rest.must(201, "POST", f"{group}/hpa-intents", {"metadata": {"name": "slots"}, "spec": {"app": "web"}})
    pods = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    rest.must(201, "POST", consumers, {"metadata": {"name": "web"}, "spec": pods})
    slot = {"resource": {"machine": "general/large", "maxRuntime": "2h"}}
    needs = f"{consumers}/web/resource-requirements"
    wrong = {"metadata": {"name": "slot"}, "spec": {"resource": {"machine": "general/large", "requests": 1}}}
    assert rest("POST", needs, wrong).code == "Invalid"
    made = rest.must(201, "POST", needs, {"metadata": {"name": "slot"}, "spec": slot})
    assert made["spec"] == {"mandatory": True, "allocatable": True, **slot}
    rest.must(202, "POST", group + "/approve")
    rest.must(202, "POST", group + "/instantiate")
    rest.until(group + "/status", lambda status: status["phase"] == "Running")
    guest = ("used", "emco/shop/v1/dig")
    await until(lambda: [(g["state"], g["group"]) for g in mesh.http("/v1/guests")["items"]] == [guest] * 3)
    rest.must(202, "POST", group + "/terminate")
    await until(lambda: reserved(mesh))


async def test_a_need_for_a_slot_is_shown_by_v2(mesh: Mesh) -> None:
    await until(lambda: reserved(mesh))
    mesh.http("/v1/apply", application("seen", 1))
    group = "/projects/default/composite-apps/seen/v1/deployment-intent-groups/default"
    (consumer,) = HttpClient(mesh).must(200, "GET", f"{group}/hpa-intents/web/hpa-resource-consumers")
    (need,) = consumer["spec"]["resourceRequirements"]
    assert need["spec"] == {"mandatory": True, "allocatable": True, "resource": {"machine": "general/large"}}
    remove(mesh, "seen")
    await until(lambda: reserved(mesh))
