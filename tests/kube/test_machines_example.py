"""The documented example of a Machine on a real API server: what goes in, and every field of what comes out of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from moorage.bus import Bus
from moorage.machine_groups.names import GROUP_VERSION, NAMESPACE_LABELS
from moorage.machines.install import install
from moorage.model.object_names import NAMESPACE
from moorage_testkit.control_plane import ControlPlane
from moorage_testkit.fleets import node
from moorage_testkit.machine_cluster import MachineCluster, MachinesProcess
from moorage_testkit.machines import example
from moorage_testkit.servers import NatsServer

from .conftest import settled
from .machines import hooks_answer
from .test_machines_mesh import CLUSTER, TEAM, Slots

Object = dict[str, Any]
DOMAIN = "imperator.tenzen-y.io"
GPU = "nvidia.com/gpu"
PATH = f"/apis/{GROUP_VERSION}"
DGX = {"nvidia.com/gpu.machine": "DGX-1"}
CARDS = {"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-3090", "nvidia.com/gpu.family": "ampere"}
NODES = {"michiru": CARDS, "utaha": DGX, "eriri": DGX}
AMOUNTS = {"cpu": "64", "memory": "512Gi", GPU: "8"}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: compute-xlarge-general-machine
  namespace: moorage-system
  labels: &labels
    imperator.tenzen-y.io/machine-group: general-machine
    imperator.tenzen-y.io/machine-type: compute-xlarge
    imperator.tenzen-y.io/pod-role: reservation
spec:
  selector: *labels
  type: ClusterIP
  clusterIP: None
"""
STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: compute-xlarge-general-machine
  namespace: moorage-system
  labels: &labels
    imperator.tenzen-y.io/machine-group: general-machine
    imperator.tenzen-y.io/machine-type: compute-xlarge
    imperator.tenzen-y.io/pod-role: reservation
spec:
  selector:
    matchLabels: *labels
  serviceName: compute-xlarge-general-machine
  replicas: 1
  podManagementPolicy: Parallel
  updateStrategy: {type: OnDelete}
  template:
    metadata:
      labels: *labels
    spec:
      schedulingGates:
        - name: imperator.tenzen-y.io/slot
      terminationGracePeriodSeconds: 1
      tolerations:
        - {key: imperator.tenzen-y.io/compute-xlarge, effect: NoSchedule, operator: Equal, value: general-machine}
        - {key: imperator.tenzen-y.io/node-pool, effect: NoSchedule, operator: Equal, value: ready}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - {key: imperator.tenzen-y.io/compute-xlarge, operator: In, values: [general-machine]}
                  - {key: imperator.tenzen-y.io/node-pool, operator: In, values: [ready]}
                  - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-GeForce-RTX-3090]}
      containers:
        - name: sleeper
          image: alpine:3.15.0
          command: [sleep]
          args: [infinity]
          resources:
            requests: {cpu: "40", memory: 128Gi, nvidia.com/gpu: "2"}
            limits: {cpu: "40", memory: 128Gi, nvidia.com/gpu: "2"}
"""
POOL = """\
apiVersion: imperator.tenzen-y.io/v1alpha1
kind: MachineNodePool
metadata:
  name: general-machine-node-pool
  labels:
    imperator.tenzen-y.io/machine-group: general-machine
spec:
  machineGroup: general-machine
  nodePool:
    - {name: michiru, mode: ready, taint: true, machineType: [{name: compute-xlarge}]}
    - {name: utaha, mode: maintenance, taint: false, machineType: [{name: compute-medium}]}
    - {name: eriri, mode: ready, taint: true, machineType: [{name: compute-medium}]}
  machineTypeStock: [{name: compute-medium}, {name: compute-xlarge}, {name: compute-large}]
"""
#: Whose Pods ask for a slot with everything that the injector would write already in them, as users copy it from a reservation.
GUEST = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: guest-deployment
  labels:
    imperator.tenzen-y.io/machine-group: general-machine
    imperator.tenzen-y.io/machine-type: compute-xlarge
    imperator.tenzen-y.io/pod-role: guest
    imperator.tenzen-y.io/injecting-container: training-container
spec:
  selector:
    matchLabels: &labels
      imperator.tenzen-y.io/machine-group: general-machine
      imperator.tenzen-y.io/machine-type: compute-xlarge
      imperator.tenzen-y.io/pod-role: guest
  replicas: 1
  template:
    metadata:
      labels: *labels
    spec:
      tolerations:
        - {key: imperator.tenzen-y.io/compute-xlarge, effect: NoSchedule, operator: Equal, value: general-machine}
        - {key: imperator.tenzen-y.io/node-pool, effect: NoSchedule, operator: Equal, value: ready}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - {key: imperator.tenzen-y.io/compute-xlarge, operator: In, values: [general-machine]}
                  - {key: imperator.tenzen-y.io/node-pool, operator: In, values: [ready]}
                  - {key: nvidia.com/gpu.family, operator: In, values: [ampere]}
      containers:
        - name: training-container
          image: nvidia/cuda:11.4.2-devel-ubuntu20.04
          command: [sh, -c]
          args: [python, train.py]
          resources:
            requests: {cpu: 40000m, memory: 128Gi, nvidia.com/gpu: "2"}
            limits: {cpu: 40000m, memory: 128Gi, nvidia.com/gpu: "2"}
"""


@pytest.fixture
def cluster() -> Iterator[MachineCluster]:
    with ControlPlane("example") as plane:
        for name, labels in NODES.items():
            plane.node(name, allocatable=AMOUNTS, labels=labels)
        found = MachineCluster(plane)
        asyncio.run(found.install(lambda api: install(api, "moorage", 2, lambda _text: None, deploy=False)))
        found.namespace(TEAM, NAMESPACE_LABELS[1])
        yield found


def without_defaults(wanted: Any, found: Any) -> Any:
    """Returns what was found, only with the fields that are wanted."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {key: without_defaults(value, found[key]) for key, value in wanted.items() if key in found}
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [without_defaults(one, other) for one, other in zip(wanted, found, strict=True)]
    return found


def assert_as_documented(text: str, found: Object) -> None:
    wanted = yaml.safe_load(text)
    assert without_defaults(wanted, found) == wanted


def rows(cluster: MachineCluster) -> list[Object]:
    """Returns the usage of all types in the order of the status."""
    found: list[Object] = (cluster.get_machine("general-machine").get("status") or {}).get("availableMachines") or []
    return found


def row(name: str, maximum: int, reserved: int, used: int, waiting: int) -> Object:
    return {"name": name, "usage": {"maximum": maximum, "reserved": reserved, "used": used, "waiting": waiting}}


async def rows_become(cluster: MachineCluster, *wanted: Object) -> None:
    try:
        await settled(lambda: rows(cluster) == list(wanted), 40)
    except AssertionError:
        raise AssertionError(f"{rows(cluster)}, not {wanted}") from None


def pool_conditions(cluster: MachineCluster) -> list[Object]:
    pool = cluster.call("GET", f"{PATH}/machinenodepools/general-machine-node-pool")
    found: list[Object] = (pool.get("status") or {}).get("nodePool") or []
    return found


def marks(cluster: MachineCluster, name: str) -> tuple[dict[str, str], set[tuple[str, str, str]], str]:
    """Returns the labels, the taints and the group that a Node has of us."""
    found = cluster.call("GET", f"/api/v1/nodes/{name}")
    labels = {k.removeprefix(f"{DOMAIN}/"): v for k, v in found["metadata"]["labels"].items() if k.startswith(DOMAIN)}
    taints = {
        (t["key"].removeprefix(f"{DOMAIN}/"), t["value"], t["effect"])
        for t in found["spec"].get("taints") or ()
        if t["key"].startswith(DOMAIN)
    }
    return labels, taints, (found["metadata"].get("annotations") or {}).get(f"{DOMAIN}/machine-group", "")


async def marks_become(cluster: MachineCluster, name: str, *wanted: Any) -> None:
    try:
        await settled(lambda: marks(cluster, name) == wanted, 20)
    except AssertionError:
        raise AssertionError(f"{marks(cluster, name)}, not {wanted}") from None


def statuses(obj: Object) -> dict[str, str]:
    for condition in obj["status"]["conditions"]:
        assert TIME.fullmatch(condition["lastTransitionTime"])
        assert condition["observedGeneration"] == obj["metadata"]["generation"]
    return {condition["type"]: condition["status"] for condition in obj["status"]["conditions"]}


async def test_every_field_of_the_documented_example(cluster: MachineCluster, nats: NatsServer, bus: Bus) -> None:
    nodes = [
        node(name, labels={"kubernetes.io/hostname": name, **labels}, cpu="64", memory="512Gi", resources={GPU: "8"})
        for name, labels in NODES.items()
    ]
    slots = await Slots.open(nats, 1, nodes)
    process = MachinesProcess(cluster, "--name", CLUSTER, MOORAGE_NATS_URL=nats.url)
    try:
        await settled(lambda: process.is_ready() and hooks_answer(cluster), 40, "hooks answer")
        # The status that the example has is none of ours, and is not taken.
        document = example() | {"status": {"availableMachines": [row("compute-medium", 9, 9, 9, 9)]}}
        made = cluster.machine(document)
        assert made["spec"] == document["spec"] and "status" not in made
        large = row("compute-large", 2, 0, 0, 0)  # it is in no pool, and reserves nothing
        await rows_become(cluster, row("compute-medium", 4, 4, 0, 0), row("compute-xlarge", 1, 1, 0, 0), large)
        good = {"Ready": "True", "CapacityShort": "False", "NodesHealthy": "True"}
        await settled(lambda: statuses(cluster.get_machine("general-machine")) == good, 30, "all is well")
        machine = cluster.get_machine("general-machine")

        # The objects that the Machine makes.
        name = "compute-xlarge-general-machine"
        service = f"/api/v1/namespaces/{NAMESPACE}/services/{name}"
        await settled(lambda: cluster.find(service), 30, "its Service is made")
        assert_as_documented(SERVICE, cluster.call("GET", service))
        assert_as_documented(
            STATEFUL_SET, cluster.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/{name}")
        )
        ready = [
            {"name": "michiru", "condition": "Ready"},
            {"name": "utaha", "condition": "Maintenance"},
            {"name": "eriri", "condition": "Ready"},
        ]
        await settled(lambda: pool_conditions(cluster) == ready, 20, "the health of its Nodes is told")
        pool = cluster.call("GET", f"{PATH}/machinenodepools/general-machine-node-pool")
        assert_as_documented(POOL, pool)
        assert pool["spec"] == yaml.safe_load(POOL)["spec"]
        (owner,) = pool["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Machine", "general-machine", machine["metadata"]["uid"])  # fmt: skip
        assert statuses(pool)["Ready"] == "True"
        xlarge, medium = ("compute-xlarge", "general-machine"), ("compute-medium", "general-machine")
        await marks_become(
            cluster,
            "michiru",
            dict([xlarge]) | {"node-pool": "ready"},
            {(*xlarge, "NoSchedule"), ("node-pool", "ready", "NoSchedule")},
            "general-machine",
        )
        await marks_become(cluster, "utaha", dict([medium]), set(), "general-machine")

        # A guest with everything in it already: nothing is written twice, and where it may go is narrowed to the Machine's selector.
        deployment = yaml.safe_load(GUEST)
        cluster.call("POST", f"/apis/apps/v1/namespaces/{TEAM}/deployments", deployment)
        await rows_become(cluster, row("compute-medium", 4, 4, 0, 0), row("compute-xlarge", 1, 0, 1, 0), large)
        (guest,) = cluster.pods(TEAM)
        template = deployment["spec"]["template"]
        assert guest["spec"]["nodeName"] == "michiru" and "schedulingGates" not in guest["spec"]
        assert template["metadata"]["labels"].items() <= guest["metadata"]["labels"].items()
        assert guest["metadata"]["annotations"]["moorage.dev/slot"] == "general-machine/compute-xlarge"
        own = [t for t in guest["spec"]["tolerations"] if t["key"].startswith(DOMAIN)]
        assert own == template["spec"]["tolerations"]
        (term,) = guest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]  # fmt: skip
        (wanted,) = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]  # fmt: skip
        product = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-GeForce-RTX-3090"]}
        assert term["matchExpressions"] == [*wanted["matchExpressions"], product]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["michiru"]}]
        (container,) = guest["spec"]["containers"]
        amounts = {"cpu": "40", "memory": "128Gi", GPU: "2"}
        assert container["resources"] == {"requests": amounts, "limits": amounts}
        assert (container["command"], container["args"]) == (["sh", "-c"], ["python", "train.py"])

        # Every column of the usage. With both labels of the namespace two hooks are asked, and the second changes nothing.
        cluster.patch(f"/api/v1/namespaces/{TEAM}", {"metadata": {"labels": {NAMESPACE_LABELS[0]: "enabled"}}})
        let_in = cluster.pod(TEAM, "medium", {f"{DOMAIN}/machine-type": "compute-medium"})["spec"]
        assert let_in["schedulingGates"] == [{"name": f"{DOMAIN}/slot"}]
        assert [t["key"] for t in let_in["tolerations"] if t["key"].startswith(DOMAIN)] == [f"{DOMAIN}/compute-medium", f"{DOMAIN}/node-pool"]  # fmt: skip
        cluster.pod(TEAM, "large", {f"{DOMAIN}/machine": "compute-large"})
        large = row("compute-large", 2, 0, 0, 1)
        await rows_become(cluster, row("compute-medium", 4, 3, 1, 0), row("compute-xlarge", 1, 0, 1, 0), large)

        # A Node that is not ready: what is used there stays so, and reservations there hold nothing.
        cluster.patch("/api/v1/nodes/eriri", {"spec": {"unschedulable": True}})
        await settled(lambda: pool_conditions(cluster) == [*ready[:2], {"name": "eriri", "condition": "NotReady"}], 20)
        await marks_become(
            cluster,
            "eriri",
            dict([medium]),
            {(*medium, "NoSchedule"), ("node-pool", "not-ready", "NoSchedule")},
            "general-machine",
        )
        await rows_become(cluster, row("compute-medium", 4, 0, 1, 0), row("compute-xlarge", 1, 0, 1, 0), large)
        bad = {"Ready": "True", "CapacityShort": "True", "NodesHealthy": "False"}
        await settled(lambda: statuses(cluster.get_machine("general-machine")) == bad, 30, "what is wrong is told")
        conditions = cluster.get_machine("general-machine")["status"]["conditions"]
        messages = {c["type"]: (c["reason"], c["message"]) for c in conditions}
        assert messages["NodesHealthy"] == ("NodesNotReady", "eriri")
        assert messages["CapacityShort"] == ("CapacityShort", "compute-medium: 3 of 4 slots find no room")
    finally:
        process.remove()
        await slots.bus.close()
