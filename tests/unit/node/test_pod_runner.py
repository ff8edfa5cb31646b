"""Tests what an agent without a kubelet does before it knows the pods of its directory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from moorage.node.alone import PodRunner
from moorage.node.containers import ContainerIndex
from moorage.node.pod_source import ManifestDirectory, PodSource
from moorage_testkit.polling import until


class Runtime:
    """A runtime without sandboxes."""

    async def sandboxes(self) -> list[Any]:
        return []


class Gate:
    def __init__(self) -> None:
        self.removed: list[str] = []

    def sandbox_removed(self, uid: str) -> None:
        self.removed.append(uid)


async def test_no_pod_is_taken_for_gone_before_the_directory_was_read(tmp_path: Path) -> None:
    index, gate, directory = ContainerIndex(), Gate(), ManifestDirectory(tmp_path, PodSource())
    index.add_sandbox("sandbox", "runs")
    runner = PodRunner(Runtime(), directory, gate, index, asyncio.Condition())  # type: ignore[arg-type]
    running = asyncio.create_task(runner.run())
    await asyncio.sleep(0.1)
    assert not gate.removed
    reading = asyncio.create_task(directory.run())
    await until(lambda: "runs" in gate.removed, 20, "what the directory does not have is removed")
    for task in (running, reading):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
