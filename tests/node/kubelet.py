"""Runs a stock kubelet on a private container runtime: standalone with static pods, or as a node of a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import yaml

from .containerd import CGROUPS, Containerd

#: Settings of the kernel that a kubelet changes.
_SYSCTL = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_NEVER = "0%"


class Kubelet:
    def __init__(self, program: Path, daemon: Containerd, runtime: str, node: str, log: Path, **config: Any) -> None:
        """`runtime`: the socket that the kubelet is given. `config`: more fields of its configuration."""
        self._program, self._daemon, self._node = program, daemon, node
        self.directory = daemon.directory / "k"
        self.directory.mkdir()
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: tuple[str, ...] = ()
        self._sysctl = {name: Path("/proc/sys", name).read_text() for name in _SYSCTL}
        (self.directory / "config.yaml").write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubelet.config.k8s.io/v1beta1",
                    "kind": "KubeletConfiguration",
                    "containerRuntimeEndpoint": f"unix://{runtime}",
                    "cgroupDriver": "cgroupfs",
                    "cgroupRoot": daemon.cgroup_parent,
                    "failCgroupV1": False,
                    "enforceNodeAllocatable": ["none"],
                    "failSwapOn": False,
                    "oomScoreAdj": 0,
                    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
                    "authorization": {"mode": "AlwaysAllow"},
                    "enableServer": False,
                    "healthzPort": 0,
                    "fileCheckFrequency": "1s",
                    "syncFrequency": "1s",
                    "evictionHard": dict.fromkeys(
                        ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), _NEVER
                    ),
                    "imageGCHighThresholdPercent": 100,
                    "localStorageCapacityIsolation": False,
                    "makeIPTablesUtilChains": False,
                    "enableControllerAttachDetach": False,
                    "resolvConf": "",
                    "podLogsDir": str(self.directory / "logs"),
                    "volumePluginDir": str(self.directory / "volume-plugins"),
                    **config,
                }
            )
        )

    def start(self, *arguments: str) -> None:
        """Starts the kubelet; without arguments as it was started before."""
        _make_cgroup(self._daemon.cgroup_parent)
        self._arguments = arguments or self._arguments
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [
                    *(self._program, "--config", self.directory / "config.yaml", "--hostname-override", self._node),
                    *("--root-dir", self.directory / "root", "--cert-dir", self.directory / "pki", "--v=2"),
                    *self._arguments,
                ],
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    async def said(self, words: str, seconds: float = 120.0) -> None:
        """Waits until the kubelet has logged these words."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while words not in (log := await asyncio.to_thread(self.log.read_text)):
            running = self._process is not None and self._process.poll() is None
            assert running and loop.time() < until, f"the kubelet does not say {words!r}:\n{log[-4000:]}"
            await asyncio.sleep(0.1)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends the kubelet; its containers run on."""
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        for name, value in self._sysctl.items():
            Path("/proc/sys", name).write_text(value)


def _make_cgroup(parent: str) -> None:
    """Makes the cgroup below which the kubelet puts all pods: in each hierarchy, with controllers turned on."""
    version2 = CGROUPS / "cgroup.controllers"
    if version2.exists():
        (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in version2.read_text().split()))
        (CGROUPS / parent.lstrip("/")).mkdir(exist_ok=True)
        return
    for hierarchy in CGROUPS.iterdir():
        if not os.path.ismount(hierarchy):
            continue
        place = hierarchy / parent.lstrip("/")
        place.mkdir(exist_ok=True)
        if hierarchy.name.startswith("cpuset"):
            for name in ("cpuset.cpus", "cpuset.mems"):
                (place / name).write_text((hierarchy / name).read_text())
