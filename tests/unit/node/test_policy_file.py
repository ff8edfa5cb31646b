"""The file with the node's policy is followed, whichever way it is replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.node.machines import write_policy, write_sysfs

from moorage.node.policy_file import PolicyFile
from moorage.node.sysfs import read_machine


async def _follows(path: Path, machine_root: Path, change: Callable[[], Awaitable[None]]) -> str:
    """Returns the topology policy that is in force after the change; the change runs when the file is followed."""
    policy = PolicyFile(path, read_machine(write_sysfs(machine_root, 1, 4)))
    policy.load()
    heard = asyncio.Event()
    task = asyncio.ensure_future(policy.follow(heard.set))
    await asyncio.sleep(0)
    await change()
    await asyncio.wait_for(heard.wait(), 30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return policy.policy.spec.topology_policy


@pytest.mark.parametrize("way", ["renamed", "written", "mounted"])
async def test_each_way_of_changing_the_file_is_heard(tmp_path: Path, way: str) -> None:
    directory = tmp_path / "etc"
    directory.mkdir()
    path = directory / "policy.yaml"
    if way == "mounted":  # as a kubelet mounts a ConfigMap: through a link that it replaces
        for name, policy in (("..1", "none"), ("..2", "restricted")):
            (directory / name).mkdir()
            write_policy(directory / name / "policy.yaml", topologyPolicy=policy)
        (directory / "..data").symlink_to("..1")
        path.symlink_to("..data/policy.yaml")
    else:
        write_policy(path, topologyPolicy="none")

    async def change() -> None:
        if way == "mounted":
            (directory / "..data_tmp").symlink_to("..2")
            (directory / "..data_tmp").rename(directory / "..data")
        elif way == "written":
            path.write_text(path.read_text().replace("none", "restricted"))
        else:
            write_policy(path, topologyPolicy="restricted")

    assert await _follows(path, tmp_path / "sys", change) == "restricted"


async def test_a_change_between_start_and_watch_is_heard(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "policy.yaml", topologyPolicy="none")
    policy = PolicyFile(path, read_machine(write_sysfs(tmp_path / "sys", 1, 4)))
    policy.load()
    write_policy(path, topologyPolicy="restricted")
    heard = asyncio.Event()
    task = asyncio.ensure_future(policy.follow(heard.set))
    await asyncio.wait_for(heard.wait(), 30)
    task.cancel()
    assert policy.policy.spec.topology_policy == "restricted"
