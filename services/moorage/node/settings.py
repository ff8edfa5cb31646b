"""The settings of a node agent, as its command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

Attach = Literal["cri", "nri", "alone"]


class Settings(NamedTuple):
    node: str
    attach: Attach = "cri"
    runtime: str = "unix:///run/containerd/containerd.sock"
    root: Path = Path("/var/lib/moorage/node")
    config: Path | None = None
    pods: str = "api"
    nri: Path = Path("/var/run/nri/nri.sock")
    sysfs: Path = Path("/sys")
    plugins: tuple[str, ...] = ("cpu", "memory", "NIC")
    cluster: str = ""
    credentials: Path | None = None
    kubeconfig: Path | None = None
    kubelet: Path = Path("/var/lib/kubelet")
    cgroup_parent: str = "/moorage"
    enabled: bool = False
    period: float = 3.0

    def encode(self) -> str:
        """Encodes the settings as an argument of a process."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @property
    def cri_socket(self) -> Path:
        return self.root / "cri.sock"

    @property
    def http_socket(self) -> Path:
        return self.root / "node.sock"

    @property
    def registry(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def legacy_socket(self) -> Path:
        return self.root / "resource-plugins" / "kubelet.sock"

    @property
    def pod_resources_socket(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"


def decode(text: str) -> Settings:
    """Reads what `Settings.encode` gave."""

    def read(kind: type, value: Any) -> Any:
        return kind(value)

    return msgspec.json.decode(text, type=Settings, dec_hook=read)


def read_gate(text: str) -> bool:
    """Reads `QoSResourceManager=true`. Raises ValueError for another gate or value."""
    enabled = False
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name != "QoSResourceManager" or value.lower() not in ("true", "false"):
            raise ValueError(f"{part!r} is no feature gate of the node agent; write QoSResourceManager=true or =false")
        enabled = value.lower() == "true"
    return enabled
