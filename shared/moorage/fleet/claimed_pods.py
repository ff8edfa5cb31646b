"""Counts the live pods that carry a claim, by cluster and node, as agents report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from moorage.model.slots import PartAmounts

from .delta import ClusterDelta, NamedPods

OfNodes = TypeVar("OfNodes")


class ClaimedPods:
    def __init__(self) -> None:
        # cluster → claim → node → pods
        self._claims: dict[int, dict[str, dict[str, int]]] = {}
        self._ending: dict[int, dict[str, dict[str, int]]] = {}
        self._counted: dict[int, dict[str, dict[str, int]]] = {}
        self._named: dict[int, NamedPods] = {}
        self._refused: dict[int, dict[str, list[str]]] = {}  # cluster → claim → nodes
        self._words: dict[int, dict[str, str]] = {}  # cluster → claim → what the last of them said
        self._claimed_in: dict[str, tuple[int, ...]] = {}  # claim → clusters

    def claims_of(self, cid: int) -> dict[str, dict[str, int]]:
        """Returns claim → node → pods of a cluster; node "" has the pods that are not bound."""
        return self._claims.get(cid, {})

    def ending_of(self, cid: int) -> dict[str, dict[str, int]]:
        """Returns claim → node → live pods of a cluster that are being deleted."""
        return self._ending.get(cid, {})

    def counted_of(self, cid: int) -> dict[str, dict[str, int]]:
        """Returns claim → node → live pods of a cluster that what is in use of the node's parts includes."""
        return self._counted.get(cid, {})

    def named_of(self, cid: int) -> NamedPods:
        """Returns claim → node → what those pods of a cluster take of parts of which it is told; it is in use there."""
        return self._named.get(cid, {})

    def refused_of(self, cid: int) -> dict[str, list[str]]:
        """Returns claim → nodes of a cluster that did not admit its pods and have not changed since."""
        return self._refused.get(cid, {})

    def refusals(self, cid: int) -> set[tuple[str, str]]:
        """Returns the claims of a cluster whose pods nodes did not admit, each with such a node."""
        return {(claim, node) for claim, nodes in self._refused.get(cid, {}).items() for node in nodes}

    def refusal_words(self, cid: int) -> dict[str, str]:
        """Returns claim → what the node of a cluster said that refused one of its pods last."""
        return self._words.get(cid, {})

    def live(self, claim: str, cluster: int | None = None) -> dict[str, int]:
        """Returns node → bound, unfinished pods that carry this claim.

        Name the cluster if it is known: a pod in another cluster that carries the same claim does so by mistake.
        """
        found: dict[str, int] = {}
        where = self._claimed_in.get(claim, ())
        for cid in where if cluster is None or not where else (cluster,):
            for node, pods in self._claims.get(cid, {}).get(claim, {}).items():
                if node:
                    found[node] = found.get(node, 0) + pods
        return found

    def ending(self, claim: str, cluster: int) -> dict[str, int]:
        """Returns node → live pods of this claim that are being deleted."""
        return self._ending.get(cluster, {}).get(claim, {})

    def counted(self, claim: str, cluster: int) -> dict[str, int]:
        """Returns node → live pods of this claim that what is in use of the node's parts includes."""
        return self._counted.get(cluster, {}).get(claim, {})

    def named(self, claim: str, cluster: int) -> dict[str, list[tuple[PartAmounts, int]]]:
        """Returns node → what those pods of this claim take of parts of which it is told, and how many of them."""
        return self._named.get(cluster, {}).get(claim, {})

    def present(self, claim: str, cluster: int | None = None) -> int:
        """Returns the number of unfinished pods of a claim, bound or not."""
        cids = self._claimed_in.get(claim, ()) if cluster is None else (cluster,)
        return sum(sum(self._claims.get(cid, {}).get(claim, {}).values()) for cid in cids)

    def restate(self, part: ClusterDelta) -> set[str]:
        """Applies the claims of a patch. Returns those whose pods changed."""
        claims = part.claims
        if part.whole:
            claims = {claim: {} for claim in self._claims.get(part.id, {}) if claim not in claims} | claims
        if part.refused or part.id in self._refused:
            self._restate_refused(part)
        _restate(self._ending, part.id, claims, part.ending)
        _restate(self._counted, part.id, claims, part.counted)
        _restate(self._named, part.id, claims, part.named)
        for claim, nodes in claims.items():
            where = self._claimed_in.get(claim, ())
            if nodes:
                self._claims.setdefault(part.id, {})[claim] = nodes
                if part.id not in where:
                    self._claimed_in[claim] = (*where, part.id)
            else:
                self._claims.get(part.id, {}).pop(claim, None)
                where = tuple(cid for cid in where if cid != part.id)
                if where:
                    self._claimed_in[claim] = where
                else:
                    self._claimed_in.pop(claim, None)
        if not self._claims.get(part.id, True):
            del self._claims[part.id]
        return set(claims)

    def _restate_refused(self, part: ClusterDelta) -> None:
        """Applies what a patch says of nodes that did not admit pods, and their words."""
        refused, words = self._refused.pop(part.id, {}), self._words.pop(part.id, {})
        refused, words = (part.refused, part.words) if part.whole else (refused | part.refused, words | part.words)
        if refused := {claim: nodes for claim, nodes in refused.items() if nodes}:
            self._refused[part.id] = refused
        if words := {claim: text for claim, text in words.items() if claim in refused}:
            self._words[part.id] = words


def _restate(
    known: dict[int, dict[str, OfNodes]],
    cid: int,
    claims: Mapping[str, Mapping[str, int]],
    some: Mapping[str, OfNodes],
) -> None:
    """Replaces what is known of these claims of a cluster."""
    if not some and cid not in known:
        return
    kept = {claim: nodes for claim, nodes in known.pop(cid, {}).items() if claim not in claims}
    kept.update({claim: nodes for claim, nodes in some.items() if nodes and claims.get(claim)})
    if kept:
        known[cid] = kept
