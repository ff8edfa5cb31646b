"""Runs agents of real clusters as separate processes, as an operator does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from .control_plane import ControlPlane
from .mesh import Mesh, ended
from .resource import Resource


class AgentProcess(Resource):
    """A process `moorage agent`, with the administrator's kubeconfig or another."""

    def __init__(self, mesh: Mesh, plane: ControlPlane, *options: str, kubeconfig: Path | None = None) -> None:
        self.mesh, self.plane = mesh, plane
        self.kubeconfig = kubeconfig or plane.kubeconfig
        self._options = options
        self.environment: dict[str, str] = {}  # added to the environment of the test
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        env = {**os.environ, **self.environment, "MOORAGE_STATE": str(self.mesh.state)}
        command = [sys.executable, "-m", "moorage.cli", "agent", "--kubeconfig", str(self.kubeconfig), *self._options]
        with (self.mesh.state / f"agent-{self.plane.name}.log").open("ab") as out:
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=out)

    def send(self, number: int) -> None:
        """Sends a signal: SIGSTOP, SIGCONT."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            ended(self.process, 60)
            self.process = None

    def remove(self) -> None:
        self.stop()
