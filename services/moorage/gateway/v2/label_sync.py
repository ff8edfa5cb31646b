"""Sends the labels of registered clusters to the inventory, which owns the labels of the fleet, whenever they differ."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import structlog

from moorage.bus import NoAnswer, subjects
from moorage.fleet import FleetChange
from moorage.mesh import stores
from moorage.model.base import Model
from moorage.model.names import cluster_tokens
from moorage.model.problems import Refused
from moorage.model.v2_resources import Path

from ..bus_client import call
from ..read_model import ReadModel

log = structlog.get_logger("gateway")
#: Seconds between retries of failed updates.
RETRY_SECONDS = 5.0


class _Labels(Model, kw_only=True):
    labels: dict[str, str] = {}


_labels = msgspec.json.Decoder(_Labels).decode


def wanted_labels(view: ReadModel, cluster: str) -> dict[str, str]:
    """Returns a cluster's labels according to its resources."""
    provider, name = cluster.split("/")
    members = view.resources.members(("cluster-providers", provider, "clusters", name, "labels"))
    return {key: value for key, _, value in (path[-1].partition("=") for path in members)}


def _known(view: ReadModel, cluster: str) -> bool:
    cid = view.fleet.ids.get(cluster)
    return cid is not None and cid < view.fleet.size and bool(view.fleet.known[cid])


async def wait_for_label(view: ReadModel, path: Path, within: float = 3.0) -> None:
    """Waits until the fleet has, or no longer has, the label at this path, so that a deployment right after it sees it."""
    cluster = f"{path[1]}/{path[3]}"
    key, _, value = path[5].partition("=")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while _known(view, cluster):
                have = view.fleet.cluster_labels(view.fleet.ids[cluster])
                if have.get(key) == value if key in wanted_labels(view, cluster) else have.get(key) != value:
                    return
                await asyncio.sleep(0.01)


class LabelSync:
    def __init__(self, view: ReadModel) -> None:
        self._view = view
        self._due: set[str] = set()
        self._sent: dict[str, dict[str, str]] = {}
        self._wake = asyncio.Event()

    def start(self) -> None:
        for path in self._view.resources.paths():
            self._changed(path)
        self._view.on_label_change.append(self._changed)
        self._view.fleet.on_change.append(self._joined)
        self._view.bus.spawn(self._run())

    def _changed(self, path: Path) -> None:
        if len(path) == 6 and path[0] == "cluster-providers" and path[4] == "labels":
            self._due.add(f"{path[1]}/{path[3]}")
            self._wake.set()

    def _joined(self, _: FleetChange) -> None:
        """Sends labels of clusters that were registered before they joined the fleet."""
        if any(_known(self._view, cluster) for cluster in self._due):
            self._wake.set()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS if self._due else None):
                    await self._wake.wait()
            self._wake.clear()
            for cluster in [c for c in sorted(self._due) if _known(self._view, c)]:
                self._due.discard(cluster)
                labels = wanted_labels(self._view, cluster)
                try:
                    # Labels that an operator set are kept.
                    entry = await self._view.bus.bucket(stores.CLUSTERS).get(cluster_tokens(cluster))
                    have = _labels(entry.value).labels if entry is not None else {}
                    others = {k: v for k, v in have.items() if k not in self._sent.get(cluster, {})}
                    body = {"cluster": cluster, "labels": others | labels}
                    await call(self._view.bus, subjects.CLUSTERS_SET, body)
                    self._sent[cluster] = labels
                except NoAnswer:
                    self._due.add(cluster)
                except Refused as refusal:
                    log.warning("cannot set labels, retrying", cluster=cluster, problem=refusal.problem.detail)
                    self._due.add(cluster)
