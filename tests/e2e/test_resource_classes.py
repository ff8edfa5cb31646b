"""Resource classes against a running mesh: as people write them, with their status, over the command line, REST and NATS."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorage.bus import Bus, subjects
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

HIGH_MEM = """
kind: ResourceClass
metadata:
  name: nvidia.high.mem
spec:
  resourceSelector:
    - matchExpressions:
        - key: "Kind"
          operator: "In"
          values:
            - "nvidia-gpu"
        - key: "memory"
          operator: "GtEq"
          values:
            - "30G"
"""
HUGE_PAGES = """
kind: ResourceClass
metadata:
  name: hugepages-1gig
spec:
  resourceSelector:
    - matchExpressions:
        - key: "Kind"
          operator: "In"
          values:
            - "huge-pages"
        - key: "size"
          operator: "GtEq"
          values:
            - "1G"
"""
FAST_NIC = """
kind: ResourceClass
metadata:
  name: fast.nic
spec:
  resourceSelector:
    - matchExpressions:
        - key: "Kind"
          operator: "In"
          values:
            - "nic"
        - key: "speed"
          operator: "GtEq"
          values:
            - "40GBPS"
"""
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.memory"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "stranger"},
    "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "1"}}}]},
}


def node(name: str, gpus: int = 0, memory: str = "", pages: str = "0") -> dict[str, Any]:
    labels = {MEMORY: memory} if memory else {}
    allocatable = {"cpu": "8", "memory": "32Gi", "hugepages-1Gi": pages} | ({GPU: str(gpus)} if gpus else {})
    return {"name": name, "labels": labels, "allocatable": allocatable}


def fleet(*pods: dict[str, Any], large: int = 4) -> str:
    a = {
        "name": "a",
        "provider": "lab",
        "nodes": [node("large", large, "81920"), node("small", 2, "16384")],
        "pods": list(pods),
    }
    b = {"name": "b", "provider": "lab", "nodes": [node("large", 1, "40960"), node("pages", pages="4Gi")]}
    return json.dumps({"kind": "Fleet", "apiVersion": "moorage.dev/v1alpha1", "clusters": [a, b]})


def cli(mesh: Mesh, *arguments: str, data: str = "", code: int = 0) -> str:
    done = mesh.run(*arguments, data=data.encode())
    assert done.returncode == code, (done.stdout + done.stderr).decode()
    return (done.stdout if code == 0 else done.stderr).decode()


def refusal(mesh: Mesh, path: str, body: Any = None, token: str = "") -> tuple[int, dict[str, Any]]:
    """Returns status and problem of a request that is refused."""
    given = mesh.endpoint["token"]
    mesh.endpoint["token"] = token or given
    try:
        mesh.http(path, body)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    finally:
        mesh.endpoint["token"] = given
    raise AssertionError(f"{path} is not refused")


def apply(mesh: Mesh, document: str, code: int = 0) -> str:
    return cli(mesh, "apply", "-f", "-", data=document, code=code)


def status(mesh: Mesh, name: str) -> tuple[str, str, str]:
    found = mesh.http(f"/v1/resource-classes/{name}")["status"]
    return found["allocatable"], found["requested"], found["free"]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("fleet") / "fleet.json"
    file.write_text(fleet())
    with Mesh("--fleet", str(file)) as found:
        for document in (HIGH_MEM, HUGE_PAGES, FAST_NIC):
            apply(found, document)
        wait_until(lambda: status(found, "nvidia.high.mem") == ("5", "0", "5"), within=60)
        yield found


def test_classes_of_the_proposal_have_their_status(mesh: Mesh) -> None:
    assert status(mesh, "nvidia.high.mem") == ("5", "0", "5")
    assert status(mesh, "hugepages-1gig") == ("4", "0", "4")
    assert status(mesh, "fast.nic") == ("0", "0", "0")
    found = mesh.http("/v1/resource-classes/nvidia.high.mem")
    assert found["status"]["clusters"] == {
        "lab/a": {"allocatable": "4", "requested": "0", "free": "4"},
        "lab/b": {"allocatable": "1", "requested": "0", "free": "1"},
    }
    assert found["metadata"]["uid"] and found["spec"]["resourceSelector"][0]["matchExpressions"][1]["values"] == ["30G"]
    rows = cli(mesh, "get", "rcls").splitlines()
    assert [row.split()[:4] for row in rows[1:]] == [
        ["fast.nic", "0", "0", "0"],
        ["hugepages-1gig", "4", "0", "4"],
        ["nvidia.high.mem", "5", "0", "5"],
    ]


def test_the_unit_of_the_proposal_is_warned_of(mesh: Mesh) -> None:
    assert "AmbiguousUnit" in cli(mesh, "apply", "-f", "-", "--dry-run", data=FAST_NIC)
    assert "resourceclass/fast.nic unchanged" in apply(mesh, FAST_NIC)
    assert "warning AmbiguousUnit" in cli(mesh, "explain", "class", "fast.nic")


def test_changes_of_the_status_are_told_and_measured(mesh: Mesh) -> None:
    def told() -> list[dict[str, Any]]:
        subject = "moorage.events.classes.changed.nvidia=2Ehigh=2Emem"
        return list(mesh.http(f"/v1/events?follow=false&limit=500&subject={subject}")["items"])

    try:
        cli(mesh, "fleet", "apply", "-", "--yes", data=fleet(large=3))
        wait_until(lambda: any(one["data"].get("allocatable") == "4" for one in told()), within=60)
    finally:
        cli(mesh, "fleet", "apply", "-", "--yes", data=fleet())
    wait_until(lambda: told()[-1]["data"].get("allocatable") == "5", within=60)
    wait_until(lambda: 'moorage_class_allocatable{class="nvidia.high.mem"} 5.0' in metrics(mesh), within=60)


def metrics(mesh: Mesh) -> str:
    """Returns the metrics of all mergers, of which one counts."""
    texts = []
    for address in mesh.endpoint["metrics"]["merger"]:
        with urllib.request.urlopen(address, timeout=10) as response:
            texts.append(response.read().decode())
    return "".join(texts)


def test_status_follows_strangers_pods_and_nodes(mesh: Mesh) -> None:
    holding = {**POD, "spec": {**POD["spec"], "nodeName": "large"}}  # type: ignore[dict-item]
    try:
        cli(mesh, "fleet", "apply", "-", "--yes", data=fleet(holding))
        wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "1", "4"), within=60)
        cli(mesh, "fleet", "apply", "-", "--yes", data=fleet(large=8))
        wait_until(lambda: status(mesh, "nvidia.high.mem") == ("9", "0", "9"), within=60)
    finally:
        cli(mesh, "fleet", "apply", "-", "--yes", data=fleet())
    wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "0", "5"), within=60)


def test_a_spec_cannot_be_changed(mesh: Mesh) -> None:
    changed = HIGH_MEM.replace("30G", "31G")
    assert "cannot be changed" in apply(mesh, changed, code=4)
    code, problem = refusal(mesh, "/v1/apply", _as_json(changed))
    assert (code, problem["code"]) == (409, "Immutable")
    labelled = HIGH_MEM.replace("  name: nvidia.high.mem", "  name: nvidia.high.mem\n  labels: {team: a}")
    uid = mesh.http("/v1/resource-classes/nvidia.high.mem")["metadata"]["uid"]
    assert "updated" in apply(mesh, labelled)
    found = mesh.http("/v1/resource-classes/nvidia.high.mem")["metadata"]
    assert (found["uid"], found["labels"]) == (uid, {"team": "a"})
    assert "nvidia.high.mem" in cli(mesh, "get", "resourceclasses", "-l", "team=a", "-o", "name")


def _as_json(text: str) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(text))


def test_a_class_of_a_cluster_wins_over_the_fleets(mesh: Mesh) -> None:
    own = HIGH_MEM.replace("  name: nvidia.high.mem", "  name: nvidia.high.mem\n  cluster: lab/a").replace("30G", "10G")
    apply(mesh, own)
    try:
        text = "on lab/a the name means another class"
        wait_until(lambda: status(mesh, "nvidia.high.mem") == ("1", "0", "1"), text, within=60)
        there = mesh.http("/v1/resource-classes/nvidia.high.mem?cluster=lab/a")["status"]
        assert there["allocatable"] == "6" and there["clusters"].keys() == {"lab/a"}
        parts = [item["id"] for item in mesh.http("/v1/parts?class=nvidia.high.mem")["items"]]
        assert parts == ["large/nvidia.com/gpu", "small/nvidia.com/gpu", "large/nvidia.com/gpu"]
    finally:
        cli(mesh, "delete", "resourceclass", "nvidia.high.mem", "--cluster", "lab/a")
    wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "0", "5"), within=60)


def test_parts_tell_by_which_classes_they_are_selected(mesh: Mesh) -> None:
    items = mesh.http("/v1/parts?class=nvidia.high.mem")["items"]
    assert [(item["cluster"], item["id"], item["classes"]) for item in items] == [
        ("lab/a", "large/nvidia.com/gpu", ["nvidia.high.mem"]),
        ("lab/b", "large/nvidia.com/gpu", ["nvidia.high.mem"]),
    ]
    assert (items[0]["kind"], items[0]["vendor"]) == ("nvidia-gpu", "nvidia")
    assert items[0]["properties"]["memory"] == {"quantity": "81920Mi"}
    assert items[0]["inventories"] == {GPU: {"total": "4"}}
    assert "large/nvidia.com/gpu" in cli(mesh, "get", "parts", "--class", "nvidia.high.mem")


def test_explanations_count_each_requirement(mesh: Mesh) -> None:
    found = json.loads(cli(mesh, "explain", "class", "nvidia.high.mem", "-o", "json"))
    assert (found["devices"], found["selected"], found["healthy"], found["free"]) == (11, 5, 5, "5")
    assert [(one["key"], one["matching"], one["remaining"]) for one in found["terms"][0]["requirements"]] == [
        ("Kind", 7, 7),
        ("memory", 5, 5),
    ]
    unsaved = HIGH_MEM.replace("30G", "90G")
    text = cli(mesh, "explain", "class", "-f", "-", "--cluster", "lab/b", data=unsaved)
    assert "nearest: lab/b/large/nvidia.com/gpu: memory is 40960Mi" in text
    assert "nearest: lab/a/large/nvidia.com/gpu" in cli(mesh, "simulate", "-f", "-", data=unsaved)
    assert cli(mesh, "explain", "class", "none.such", code=3)
    assert "resourceSelector" in cli(mesh, "describe", "resourceclass", "nvidia.high.mem")


def test_the_device_class_that_selects_the_same(mesh: Mesh) -> None:
    done = mesh.run("get", "resourceclass", "nvidia.high.mem", "-o", "deviceclass")
    assert 'quantity("30G")' in done.stdout.decode() and "gpu.nvidia.com" in done.stdout.decode()
    pages = mesh.run("get", "resourceclass", "hugepages-1gig", "-o", "deviceclass")
    assert "no DRA driver is known" in pages.stderr.decode()


def test_kubectl_has_it_as_a_plugin(mesh: Mesh) -> None:
    """kubectl runs `kubectl-moorage` of the path for `kubectl moorage`."""
    plugin = Path(sys.executable).with_name("kubectl-moorage")
    env = {**os.environ, **mesh.environment, "MOORAGE_STATE": str(mesh.state)}
    done = subprocess.run([plugin, "get", "rcls", "-o", "name"], env=env, capture_output=True, timeout=100, check=True)
    assert "resourceclass/fast.nic" in done.stdout.decode().split()


def test_violations_are_alike_over_the_command_line_rest_and_nats(mesh: Mesh) -> None:
    wrong = (
        FAST_NIC.replace('"GtEq"', '"gteq"').replace('"In"', '"Eq"\n          valuez: []').replace("fast.nic", "bad")
    )
    wrong = wrong.replace('- "nic"', '- "nic"\n            - "nix"')
    expected = {
        ("spec.resourceSelector[0].matchExpressions[0].valuez", "UnknownField"),
        ("spec.resourceSelector[0].matchExpressions[0].values", "BadArity"),
        ("spec.resourceSelector[0].matchExpressions[1].operator", "BadOperator"),
    }
    code, refused = refusal(mesh, "/v1/apply", _as_json(wrong))
    assert code == 400 and {(error["path"], error["code"]) for error in refused["errors"]} == expected
    text = apply(mesh, wrong, code=1)
    assert all(path in text for path, _ in expected)
    assert asyncio.run(_errors_over_nats(mesh, _as_json(wrong))) == expected
    assert refusal(mesh, "/v1/resource-classes/bad")[0] == 404


async def _errors_over_nats(mesh: Mesh, document: dict[str, Any]) -> set[tuple[str, str]]:
    bus = await Bus.connect(mesh.settings, worker="test")
    try:
        reply = json.loads(await bus.request(subjects.INTENTS_APPLY, json.dumps(document).encode(), timeout=10))
    finally:
        await bus.close()
    return {(error["path"], error["code"]) for error in reply["problem"]["errors"]}


def test_sources_quotas_and_grants(mesh: Mesh) -> None:
    source = """
kind: DeviceSource
metadata: {name: nvidia}
spec:
  match: {resource: nvidia.com/gpu}
  kind: card
  properties: {size: {label: nvidia.com/gpu.memory, units: Mi}}
"""
    names = cli(mesh, "get", "devicesources", "-o", "name").split()
    assert "devicesource/nvidia" in names and "devicesource/hugepages" in names
    apply(mesh, source)
    try:
        wait_until(lambda: status(mesh, "nvidia.high.mem") == ("0", "0", "0"), within=60)
        kinds = "/v1/parts?cluster=lab/a"
        wait_until(lambda: [item["kind"] for item in mesh.http(kinds)["items"]] == ["card", "card"], within=60)
    finally:
        cli(mesh, "delete", "devicesource", "nvidia")
    wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "0", "5"), within=60)
    apply(
        mesh,
        "{kind: DeviceQuota, metadata: {name: q}, spec: {projects: [a], devices: [{class: nvidia.high.mem, count: 8}, {class: '*', count: 32}]}}",
    )
    assert "nvidia.high.mem=8,*=32" in cli(mesh, "get", "devicequotas")
    apply(
        mesh,
        "{kind: ClassGrant, metadata: {name: g}, spec: {projects: [a], classes: ['nvidia.*'], algorithms: [best-fit]}}",
    )
    assert cli(mesh, "get", "classgrants", "-o", "name").split() == ["classgrant/everyone", "classgrant/g"]
    cli(mesh, "delete", "classgrant", "g")
    cli(mesh, "delete", "devicequota", "q")


def test_only_administrators_write_these_kinds(mesh: Mesh) -> None:
    made = json.loads(cli(mesh, "token", "create", "an-editor", "--role", "editor", "-o", "json"))
    code, problem = refusal(mesh, "/v1/apply", _as_json(HIGH_MEM), made["token"])
    assert (code, problem["code"]) == (403, "Forbidden")
    given, mesh.endpoint["token"] = mesh.endpoint["token"], made["token"]
    try:
        assert mesh.http("/v1/resource-classes/fast.nic")["metadata"]["name"] == "fast.nic"
    finally:
        mesh.endpoint["token"] = given


def test_events_tell_of_classes(mesh: Mesh) -> None:
    apply(mesh, FAST_NIC.replace("fast.nic", "short.lived"))
    cli(mesh, "delete", "rcls", "short.lived")

    def told() -> set[str]:
        items = mesh.http("/v1/events?follow=false&subject=moorage.events.classes.>&limit=500")["items"]
        return {item["subject"] for item in items}

    name = "short=2Elived"
    wait_until(lambda: {f"moorage.events.classes.{one}.{name}" for one in ("created", "deleted")} <= told(), within=60)


DEPLOYMENT = """
apiVersion: moorage.dev/v1alpha1
kind: Application
metadata: {name: train}
spec:
  apps:
    - name: web
      manifests:
        - apiVersion: apps/v1
          kind: Deployment
          metadata: {name: web}
          spec:
            replicas: 2
            selector: {matchLabels: {app: web}}
            template:
              metadata: {labels: {app: web}}
              spec:
                containers:
                  - {name: nginx, image: nginx, resources: {limits: {nvidia.high.mem: 2}}}
"""


def test_an_application_asks_for_a_class_and_gets_what_the_cluster_has(mesh: Mesh) -> None:
    """The user story of the proposal: a pod names the class, and the node's devices are counted for it."""
    try:
        apply(mesh, DEPLOYMENT)
        cli(mesh, "wait", "train", "--for", "phase=Running", "--timeout", "90s")
        (decision,) = mesh.http("/v1/decisions?group=default/train/v1/default")["items"]
        (claim,) = decision["claims"]
        assert claim["cluster"] == "lab/a", "four devices are there alone"
        assert [(slot["node"], slot["count"], slot["parts"]) for slot in claim["slots"]] == [
            ("large", 2, {"large/nvidia.com/gpu": {GPU: "2"}})
        ]
        devices = claim["slots"][0]["devices"]
        assert {(one["part"], one["need"], one["class"]) for one in devices} == {
            ("large/nvidia.com/gpu", "nvidia.high.mem", GPU)
        }
        wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "4", "1"), within=60)
        (node_item,) = [one for one in mesh.http("/v1/nodes?cluster=lab/a")["items"] if one["name"] == "large"]
        assert node_item["free"][GPU] == "0"
        another = DEPLOYMENT.replace("name: train", "name: second")
        apply(mesh, another)
        wait_until(lambda: mesh.http("/v1/groups/default/second/v1/default")["phase"] == "Pending", within=60)
    finally:
        mesh.run("delete", "application", "second")
        mesh.run("delete", "application", "train")
    wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "0", "5"), within=60)


def test_applications_are_simulated_with_classes_that_are_not_stored(mesh: Mesh) -> None:
    own = HIGH_MEM.replace("nvidia.high.mem", "tiny").replace("30G", "1G")
    wanting = DEPLOYMENT.replace("nvidia.high.mem: 2", "tiny: 1")
    assert "placed" in cli(mesh, "simulate", "-f", "-", data=f"{own}---{wanting}").lower()
    alone = mesh.run("simulate", "-f", "-", data=wanting.encode())
    assert alone.returncode == 1 and "ClassNotFound" in alone.stdout.decode()
    assert refusal(mesh, "/v1/resource-classes/tiny")[0] == 404, "nothing is stored"


def test_a_watch_shows_changes_of_the_status(mesh: Mesh) -> None:
    seen = watched(mesh, lambda: cli(mesh, "fleet", "apply", "-", "--yes", data=fleet(large=6)), "7")
    cli(mesh, "fleet", "apply", "-", "--yes", data=fleet())
    assert seen[0].split()[:2] == ["nvidia.high.mem", "5"]
    wait_until(lambda: status(mesh, "nvidia.high.mem") == ("5", "0", "5"), within=60)


def watched(mesh: Mesh, change: Callable[[], object], wanted: str) -> list[str]:
    """Returns the lines of a watch until one has the wanted amount."""
    command = [sys.executable, "-m", "moorage.cli", "get", "rcls", "nvidia.high.mem", "-w", "--no-headers"]
    env = {**os.environ, **mesh.environment, "MOORAGE_STATE": str(mesh.state)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            change()
            while lines[-1].split()[1] != wanted:
                lines.append(process.stdout.readline())
            return lines
        finally:
            process.kill()


def test_quotas_and_grants_bound_who_gets_devices(mesh: Mesh) -> None:
    quota = "{kind: DeviceQuota, metadata: {name: q}, spec: {projects: [default], devices: [{class: nvidia.high.mem, count: 3}]}}"
    grant = "{kind: ClassGrant, metadata: {name: g}, spec: {projects: [others], classes: ['nvidia.*']}}"
    try:
        apply(mesh, quota)
        apply(mesh, DEPLOYMENT)
        why = "/v1/groups/default/train/v1/default/why"

        def codes() -> set[str]:
            return {reason["code"] for reason in mesh.http(why).get("reasons", [])}

        wait_until(lambda: "QuotaExceeded" in codes(), within=60)
        cli(mesh, "delete", "devicequota", "q")
        cli(mesh, "wait", "train", "--for", "phase=Running", "--timeout", "90s")
        apply(mesh, grant)
        code, problem = refusal(mesh, "/v1/apply", _as_json(DEPLOYMENT.replace("name: train", "name: second")))
        assert (code, problem["code"]) == (403, "ClassForbidden")
        assert "a ClassGrant must grant it" in problem["detail"]
    finally:
        mesh.run("delete", "devicequota", "q")
        mesh.run("delete", "classgrant", "g")
        mesh.run("delete", "application", "train")
