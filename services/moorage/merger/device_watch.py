"""Watches the devices that slots name, and wakes settling when time alone makes pods leave one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from moorage.fleet import Fleet
from moorage.ledger import Ledger
from moorage.model.claims import Claim

from .core.device_failures import UNHEALTHY_AFTER, DeviceFailures, Failures, Recorded

log = structlog.get_logger("merger")

#: The setting for how long a device may be unhealthy until pods leave it.
SETTING = "MOORAGE_DEVICE_UNHEALTHY_SECONDS"


def unhealthy_after() -> float:
    """Returns the setting in seconds. One that is no number is told, and the default holds."""
    text = os.environ.get(SETTING, "")
    try:
        return max(0.0, float(text)) if text else UNHEALTHY_AFTER
    except ValueError:
        log.warning("a setting is ignored: it is no number of seconds", setting=SETTING, value=text)
        return UNHEALTHY_AFTER


class DeviceWatch:
    """The times are those since this merger first saw a device fail. Calls `on_due` for a cluster when time passed that matters."""

    def __init__(self, fleet: Fleet, ledger: Callable[[], Ledger], on_due: Callable[[Iterable[str]], None]) -> None:
        self._fleet, self._ledger, self._on_due = fleet, ledger, on_due
        self._failures = DeviceFailures(unhealthy_after())
        self._held: dict[str, dict[str, str]] = {}  # cluster → device → node, until claims change
        self._vacated: set[str] = set()  # clusters with claims whose pods are to leave devices
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def reloaded(self) -> None:
        """Forgets what slots name."""
        self._held.clear()

    def claims_changed(self, claims: Sequence[Claim], left: Iterable[str] = ()) -> None:
        """Forgets what slots name on clusters of these claims, which are new or have other slots, and on clusters that claims have
        `left`. Where no slot names a device, and none does now, that is known already."""
        naming = {c.cluster for c in claims if c.vacated or any(slot.devices for slot in c.slots)}
        others = {*left, *(claim.cluster for claim in claims)}
        for cluster in naming | {cluster for cluster in others if self._held.get(cluster) or cluster in self._vacated}:
            self._held.pop(cluster, None)

    def check(self, cluster: str) -> None:
        """Looks at the devices of a cluster after a change."""
        cid, held = self._fleet.ids.get(cluster), self._names(cluster)
        if cid is None or not self._fleet.usable_clusters[cid]:
            return
        if not held:
            self._failures.forget(cid)
            return
        now = asyncio.get_running_loop().time()
        recorded = Recorded.of(self._ledger().displaced_on(cluster).values())
        self._failures.update(cid, self._fleet, held, recorded, now)
        self._wake_later(cluster, cid, now)

    def on(self, cluster: str) -> Failures:
        cid = self._fleet.ids.get(cluster)
        return Failures() if cid is None else self._failures.on(cid, asyncio.get_running_loop().time())

    def matters(self, cluster: str) -> bool:
        """Returns whether slots name a device that something is wrong with, or pods are to leave one."""
        return cluster in self._vacated or not self.on(cluster).failed.keys().isdisjoint(self._names(cluster))

    def noted(self, cluster: str) -> None:
        """Waits for the times that matter to the pods that were looked at."""
        cid = self._fleet.ids.get(cluster)
        if cid is not None:
            self._wake_later(cluster, cid, asyncio.get_running_loop().time())

    def end_masses(self, cluster: str, kind: str) -> list[str]:
        """Lets what failed on a cluster move, of a kind or of all. Returns the kinds with a mass failure."""
        cid = self._fleet.ids.get(cluster)
        return self._failures.end_masses(cid, kind) if cid is not None else []

    def _names(self, cluster: str) -> Mapping[str, str]:
        """Returns the devices that slots on a cluster name, with their nodes."""
        held = self._held.get(cluster)
        if held is None:
            ledger = self._ledger()
            actives = [ledger.claims[ident] for ident in ledger.by_cluster.get(cluster, ())]
            claims = [active.claim for active in actives if not active.withdrawn]
            slots = [slot for claim in claims for slot in claim.slots if slot.devices]
            held = self._held[cluster] = {grant.part: slot.node for slot in slots for grant in slot.devices}
            if any(claim.vacated for claim in claims):
                self._vacated.add(cluster)
            else:
                self._vacated.discard(cluster)
        return held

    def _wake_later(self, cluster: str, cid: int, now: float) -> None:
        if (before := self._timers.pop(cluster, None)) is not None:
            before.cancel()
        if (when := self._failures.next(cid, now)) is not None:
            self._timers[cluster] = asyncio.get_running_loop().call_at(when + 0.001, self._on_due, [cluster])
