"""Tests the agent without a kubelet: the pods of a directory, init containers in order, restarts later each time, across restarts of the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from moorage.node.api import cri_pb2 as cri

from .agent_process import AgentProcess
from .containerd import IMAGE, Containerd, cgroup_file
from .cri_client import CriClient
from .machines import pod, write_pod
from .test_real_runtimes import eventually, make_agent

RUNNING, EXITED = 1, 2


def _container(name: str, program: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": IMAGE, **({"command": [f"/{program}"]} if program else {}), **fields}


def _pod(
    name: str, *containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **spec: Any
) -> dict[str, Any]:
    found = pod(name, "ETL", "100m", "64Mi")
    resources = found["spec"]["containers"][0]["resources"]
    found["spec"] = {
        "hostNetwork": True,
        "containers": [{**container, "resources": resources} for container in containers],
        "initContainers": init or [],
        **spec,
    }
    return found


class Stand:
    def __init__(self, agent: AgentProcess, client: CriClient, pods: Path) -> None:
        self.agent, self.client, self.pods = agent, client, pods

    async def containers(self) -> dict[str, cri.Container]:
        """Returns the newest container of each name."""
        request = cri.ListContainersRequest()
        answer = await self.client.call("ListContainers", request, cri.ListContainersResponse)
        return {c.metadata.name: c for c in sorted(answer.containers, key=lambda c: c.created_at)}

    async def runs(self, name: str) -> cri.Container:
        async def running() -> bool:
            found = (await self.containers()).get(name)
            return found is not None and found.state == RUNNING

        await eventually(running, 60)
        return (await self.containers())[name]

    async def problem(self, words: str) -> None:
        async def told() -> bool:
            return any(words in problem for problem in (await self.agent.ask("status"))["problems"])

        await eventually(told, 60)


@pytest_asyncio.fixture
async def stand(containerd: Containerd, tmp_path: Path) -> AsyncIterator[Stand]:
    agent = make_agent(tmp_path, containerd, "--attach", "alone", "--cgroup-parent", containerd.cgroup_parent)
    client = CriClient(str(containerd.socket))
    await agent.start()
    yield Stand(agent, client, tmp_path / "pods")
    await agent.stop()
    await client.close()


async def test_init_containers_run_in_order_and_once(stand: Stand) -> None:
    init = [_container("first", "exit0"), _container("beside", restartPolicy="Always"), _container("second", "exit0")]
    write_pod(stand.pods, _pod("app", _container("main"), _container("more"), init=init))
    main = await stand.runs("main")
    await stand.runs("more")
    found = await stand.containers()
    assert sorted(found, key=lambda name: found[name].created_at)[:3] == ["first", "beside", "second"]
    assert {name: c.state for name, c in found.items()} == {
        "first": EXITED,
        "beside": RUNNING,
        "second": EXITED,
        "main": RUNNING,
        "more": RUNNING,
    }
    pid = await stand.client.pid(main.id)
    assert cgroup_file(pid, "cpuset", "cpuset.cpus").read_text().strip() == "1"
    # While the agent is away one container ends; the others are as they were, and what is done is not done again.
    await stand.agent.kill()
    await stand.client.stop(found["more"].id)
    await stand.agent.start()
    await stand.runs("more")
    after = await stand.containers()
    assert after["more"].id != found["more"].id
    assert {n: c.id for n, c in after.items() if n != "more"} == {n: c.id for n, c in found.items() if n != "more"}


async def test_what_ends_is_started_again_later_each_time(stand: Stand) -> None:
    write_pod(
        stand.pods, _pod("app", _container("fails", "exit1"), _container("missing") | {"image": "node.test/no:1"})
    )
    starts: dict[str, int] = {}

    async def three() -> bool:
        for container in (await stand.containers()).values():
            starts[container.id] = container.created_at
        return len(starts) >= 3

    await eventually(three, 60)
    first, second, third = sorted(starts.values())[:3]
    assert second - first >= 1e9 and third - second >= 2e9
    await stand.problem("container missing: ")


async def test_a_failed_init_container_of_a_pod_that_is_not_restarted(stand: Stand) -> None:
    write_pod(stand.pods, _pod("app", _container("main"), init=[_container("first", "exit1")], restartPolicy="Never"))
    await stand.problem("its init container first ended with 1")
    assert list(await stand.containers()) == ["first"]

    async def gave_back() -> bool:
        return bool(await stand.agent.ask("allocations") == [])

    await eventually(gave_back, 60)


async def test_a_pod_that_is_done_gives_back_what_it_had(stand: Stand) -> None:
    write_pod(stand.pods, _pod("job", _container("main", "exit0"), restartPolicy="OnFailure"))

    async def done() -> bool:
        ended = [c.state for c in (await stand.containers()).values()] == [EXITED]
        return ended and await stand.agent.ask("allocations") == []

    await eventually(done, 60)
    (before,) = (await stand.containers()).values()
    # Neither a change beside it nor a restart of the agent runs it again.
    write_pod(stand.pods, _pod("other", _container("beside")))
    await stand.runs("beside")
    await stand.agent.kill()
    await stand.agent.start()

    async def only_the_other() -> bool:
        return [item["pod"] for item in await stand.agent.ask("allocations")] == ["default/other"]

    await eventually(only_the_other, 60)
    assert (await stand.containers())["main"].id == before.id
