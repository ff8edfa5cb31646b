"""Keeps which apps have active claims on which cluster, in step with the ledger: agents ask often, and a cluster has many claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moorage.ledger import Changes, Family, Ledger
from moorage.model.claims import Claim


class AppOnCluster(NamedTuple):
    """One app of a group on one cluster. `claims` are those of the standing decision; without any, the app must go. `families`:
    its objects, if pods of it are pinned to slots."""

    group: str
    app: str
    claims: list[Claim]
    families: Sequence[Family] = ()
    pinned: bool = False

    @property
    def name(self) -> str:
        """Returns what agents call it."""
        return f"{self.group} {self.app}"


@dataclass(slots=True)
class _Entry:
    """The ids of an app's active claims, and the app as it was read last; None if it changed since."""

    claims: set[str]
    app: AppOnCluster | None = None


class ClusterApps:
    """The apps with active claims by cluster. It needs the changes of every commit."""

    def __init__(self, ledger: Ledger) -> None:
        self.reload(ledger)

    def reload(self, ledger: Ledger) -> None:
        """Reads all claims after the ledger was replaced."""
        self._ledger = ledger
        self._apps: dict[str, dict[tuple[str, str], _Entry]] = {}  # cluster → group and app
        self._unordered: set[str] = set()  # clusters with apps that came last instead of in their order
        self._places: dict[str, tuple[str, tuple[str, str]]] = {}  # claim → its cluster, and its group and app
        self._note(ledger.claims)

    def folded(self, changes: Changes) -> None:
        self._note(changes.claims | changes.withdrawn)

    def on(self, cluster: str) -> list[AppOnCluster]:
        """Lists the apps with active claims on a cluster, in a fixed order."""
        if cluster in self._unordered:
            self._unordered.discard(cluster)
            self._apps[cluster] = dict(sorted(self._apps[cluster].items()))
        return [entry.app or self._read(*key, entry) for key, entry in self._apps.get(cluster, {}).items()]

    def _read(self, group: str, app: str, entry: _Entry) -> AppOnCluster:
        actives = [self._ledger.claims[ident] for ident in sorted(entry.claims)]
        standing = [active.claim for active in actives if not active.withdrawn]
        families = list(dict.fromkeys(active.family for active in actives))
        entry.app = AppOnCluster(group, app, standing, families, any(active.claim.pinned for active in actives))
        return entry.app

    def _note(self, idents: Iterable[str]) -> None:
        for ident in idents:
            active = self._ledger.claims.get(ident)
            place = (active.claim.cluster, (active.group, active.claim.app)) if active is not None else None
            before = self._places.pop(ident, None)
            if before is not None and before != place:
                self._leave(ident, *before)
            if place is not None:
                self._places[ident] = place
                self._enter(ident, *place)

    def _enter(self, ident: str, cluster: str, key: tuple[str, str]) -> None:
        apps = self._apps.setdefault(cluster, {})
        entry = apps.get(key)
        if entry is None:
            entry = apps[key] = _Entry(set())
            self._unordered.add(cluster)
        entry.claims.add(ident)
        entry.app = None

    def _leave(self, ident: str, cluster: str, key: tuple[str, str]) -> None:
        apps = self._apps[cluster]
        entry = apps[key]
        entry.claims.discard(ident)
        entry.app = None
        if entry.claims:
            return
        del apps[key]
        if not apps:
            del self._apps[cluster]
            self._unordered.discard(cluster)
