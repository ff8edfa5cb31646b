"""Host ports of pods, as text (`8080/TCP`, `10.0.0.1:53/UDP`) and as resources of nodes.

Two pods cannot share a node if they use the same port and protocol at the same host IP, or if one of them uses it at every
IP. As resources: a port has `EVERY_IP` units on each node. A pod takes all of them for every IP, and one of them for a
single IP, besides the only unit of the port at that IP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PREFIX = "moorage.dev/host-port:"
EVERY_IP = 1 << 16
_ANY = ("", "0.0.0.0")
#: Longer texts are no host ports.
_LONGEST = 80


class HostPort(NamedTuple):
    """A host port as Kubernetes compares them. `ip` is empty for every IP."""

    port: int
    protocol: str = "TCP"
    ip: str = ""

    def __str__(self) -> str:
        at = f"{self.ip}:" if self.ip else ""
        return f"{at}{self.port}/{self.protocol}"


def host_port(port: int, protocol: str | None = None, ip: str | None = None) -> HostPort:
    """Fills in what Kubernetes assumes where nothing is given."""
    return HostPort(port, protocol or "TCP", "" if ip in _ANY else ip or "")


def parse_host_port(text: str) -> HostPort:
    """Raises ValueError where the text is no host port."""
    address, _, protocol = text.rpartition("/")
    ip, _, port = address.rpartition(":")
    if len(text) > _LONGEST or not protocol or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text[:_LONGEST]!r} is no host port like 8080/TCP or 10.0.0.1:53/UDP")
    return host_port(int(port), protocol, ip)


def is_host_port(resource: str) -> bool:
    return resource.startswith(PREFIX)


def node_amount(resource: str) -> int:
    """Returns how much of a host port's resource every node has."""
    return 1 if parse_host_port(resource.removeprefix(PREFIX)).ip else EVERY_IP


def port_text(resource: str) -> str:
    """Names the host port of a resource in texts: `host port 80/TCP`."""
    return f"host port {resource.removeprefix(PREFIX)}"


def ports_in(amounts: Mapping[str, int]) -> list[str]:
    """Returns the host ports that `port_amounts` turned into these amounts, as text."""
    return [r.removeprefix(PREFIX) for r, amount in amounts.items() if is_host_port(r) and amount == node_amount(r)]


def port_amounts(ports: Iterable[HostPort]) -> dict[str, int]:
    """Returns what a pod, or all pods of a node, with these ports take, by resource."""
    amounts: dict[str, int] = {}
    every_ip: set[str] = set()
    for port in sorted(set(ports)):
        shared = f"{PREFIX}{port._replace(ip='')}"
        if not port.ip:
            every_ip.add(shared)
            amounts[shared] = EVERY_IP
            continue
        amounts[f"{PREFIX}{port}"] = 1
        if shared not in every_ip:
            amounts[shared] = amounts.get(shared, 0) + 1
    return amounts
