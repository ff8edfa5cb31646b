"""An agent with a container in each of two pools, whose load is made up; its plugins and its runtime are behind sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moorage.node import updaters
from moorage.node.agent import NodeAgent
from moorage.node.settings import Settings
from moorage.qos.cpusets import parse_cpuset
from moorage_testkit.polling import until

from .cgroup_files import CgroupFiles
from .cri_client import CriClient
from .machines import pod, write_pod, write_policy, write_sysfs
from .recording_runtime import RecordingRuntime

POOLS = {"online": {"cpus": "0-19", "min": 4, "default": True}, "offline": {"cpus": "20-79", "min": 2}}
CONTROLLER = {"pools": {"online": {"usage": 0.6, "wait": 0.05, "donors": ["offline"]}}}


class LoadedPools:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, plugins: tuple[str, ...]) -> None:
        self.files = CgroupFiles(directory / "cgroups")
        monkeypatch.setattr(updaters, "of_process", self.files.of_process)
        self.policy = write_policy(directory / "policy.yaml", pools=POOLS, controller=CONTROLLER)
        self.pods = directory / "pods"
        self.pods.mkdir()
        self.runtime = RecordingRuntime()
        self.runtime.after_update = self._updated
        self.overlaps: list[str] = []
        self._directory = directory
        self.agent = NodeAgent(
            Settings(
                node="n1",
                runtime=f"unix://{directory}/r.sock",
                root=directory / "n",
                config=self.policy,
                pods=str(self.pods),
                sysfs=write_sysfs(directory / "sys"),
                kubelet=directory,
                plugins=plugins,
                enabled=True,
            )
        )

    def _updated(self) -> None:
        """Does with cgroups what a runtime does."""
        for container, resources in self.runtime.resources.items():
            name = self.runtime.containers[container].sandbox_config.metadata.name
            if (place := self.files.root / name).is_dir():
                (place / "cpuset.cpus").write_text(f"{resources.cpuset_cpus}\n")
        if len(self.runtime.resources) == 2 and self.cpus("web") & self.cpus("batch"):
            self.overlaps.append(f"{self.cpus('web'):x} {self.cpus('batch'):x}")

    def cpus(self, name: str) -> int:
        return parse_cpuset(self.runtime.cpus(f"uid-{name}"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.runtime.start(self._directory / "r.sock")
        await self.agent.start()
        kubelet = CriClient(str(self.agent.settings.cri_socket))
        try:
            await until(lambda: self.agent.cpu is not None and not self.agent.operations.ready(), 60, "it is ready")
            for pid, (name, role) in enumerate((("web", "online-micro_service"), ("batch", "ETL")), 1000):
                self.files.add(pid, name)
                manifest = pod(name, role)
                write_pod(self.pods, manifest)
                container = await kubelet.run(name, f"uid-{name}", manifest["metadata"]["annotations"])
                self.runtime.pids[container] = pid
            yield
        finally:
            await kubelet.close()
            await self.agent.stop()
            await self.runtime.stop()

    def size(self, pool: str) -> int:
        return {item["name"]: int(item["size"]) for item in self.agent.operations.pools()}[pool]
