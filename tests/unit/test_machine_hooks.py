"""Hooks that are asked over HTTP: what they know of Nodes and other Machines, whether their process acts or stands by."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import msgspec
import pytest_asyncio
from aiohttp import ClientSession, web

from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.injection import MachineGroup
from moorage.machines.hook_configurations import MACHINES
from moorage.machines.hooks import Hooks
from moorage_testkit.machines import example, machine, offline


class Asked:
    """Hooks of a process that plans nothing. `made`: Nodes that no watch has shown yet."""

    def __init__(self) -> None:
        self.state = ClusterMachines()
        self.made: set[str] = set()
        self.looked_for: list[set[str]] = []
        self.url = ""

    async def groups(self) -> Mapping[str, MachineGroup]:
        return self.state.groups()

    async def find_nodes(self, names: Collection[str]) -> Collection[str]:
        self.looked_for.append(set(names))
        return self.made & set(names)

    async def nobody(self) -> None: ...

    def node(self, name: str) -> None:
        meta = {"name": name, "uid": name, "resourceVersion": "1", "labels": {}}
        self.state.put_node({"metadata": meta, "spec": {}, "status": {}})

    def put(self, document: dict[str, Any]) -> None:
        document = copy.deepcopy(document)
        document["metadata"] |= {"uid": document["metadata"]["name"], "resourceVersion": "1"}
        self.state.put_machine(document)

    async def ask(self, document: Any) -> str:
        """Returns why a new Machine is refused; "" if it is let in."""
        name = document["metadata"]["name"]
        request = {"uid": "1", "operation": "CREATE", "name": name, "object": document}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        async with ClientSession() as client, client.post(self.url + MACHINES, json=review) as answer:
            found = msgspec.json.decode(await answer.read())["response"]
        return "" if found["allowed"] else str(found["status"]["message"])


@pytest_asyncio.fixture
async def asked() -> AsyncIterator[Asked]:
    found = Asked()
    hooks = Hooks(
        found.state, "machines", found.groups, found.find_nodes, found.nobody, lambda _outcome, _seconds: None
    )
    runner = web.ServerRunner(hooks.server())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}"
    try:
        yield found
    finally:
        await runner.cleanup()


async def test_a_machine_may_come_right_after_its_nodes(asked: Asked) -> None:
    asked.node("michiru")
    asked.made = {"utaha"}
    assert "spec.nodePool[2].name: there is no Node 'eriri' [UnknownNode]" in await asked.ask(example())
    assert asked.looked_for == [{"utaha", "eriri"}], "none that is known is asked for"
    asked.made = {"utaha", "eriri"}
    assert await asked.ask(example()) == ""


async def test_all_violations_are_told_with_paths_and_codes(asked: Asked) -> None:
    document = example()
    document["spec"]["nodePool"][0]["machineType"] = [{"name": "huge"}]
    document["spec"]["machineTypes"][0]["spec"]["cpu"] = "-5"
    document["spec"]["machineTypes"][2]["spec"]["gpu"]["num"] = 0
    kind, _, text = (await asked.ask(document)).partition(": ")
    told = {(one.partition(": ")[0], one.rpartition("[")[2]) for one in text.removesuffix("]").split("]; ")}
    assert kind == "Invalid" and told == {
        ("spec.nodePool[0].machineType[0].name", "UnknownType"),
        ("spec.machineTypes[0].spec.cpu", "OutOfRange"),
        ("spec.machineTypes[2].spec.gpu.num", "OutOfRange"),
        *((f"spec.nodePool[{number}].name", "UnknownNode") for number in range(3)),
    }


async def test_whoever_stands_by_knows_the_machines_of_now(asked: Asked) -> None:
    asked.node("n")
    one, other = (machine("g", {"a": offline(1)}, {"n": ["a"]}) for _ in range(2))
    other["metadata"]["name"] = "other"
    asked.put(one)
    refused = await asked.ask(other)
    assert "GroupTaken" in refused and "NodeTaken" in refused
    asked.state.drop_machine(one["metadata"]["name"])
    assert await asked.ask(other) == ""
    assert not asked.looked_for


async def test_pools_that_are_no_lists_of_objects_are_refused(asked: Asked) -> None:
    junk: list[Any] = [["n"], [{"name": 1}], [{"name": "n"}, None], {}, None]
    for entries in junk:
        document = example()
        document["spec"]["nodePool"] = entries
        assert (await asked.ask(document)).startswith("Invalid: spec.nodePool")
