"""Tells pods that a kubelet did not admit from others that failed, and remembers for a while which nodes did."""

from __future__ import annotations

from collections.abc import Callable

#: Seconds until a pod is sent to a node again that refused one of its claim, doubled each time, and the longest pause. What the
#: mesh decides after a refusal comes sooner.
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
#: Reasons of failed pods with which a kubelet or a node agent refuses what the scheduler bound to its node; `OutOfcpu` and the like too.
_REFUSED = frozenset(
    {
        "ClaimUnmet",
        "NodeAffinity",
        "PluginMissing",
        "PodOSNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PoolMinimum",
        "RoleForbidden",
        "RoleUnknown",
        "SMTAlignmentError",
        "SpecMissing",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)


def is_refusal(phase: str, reason: str) -> bool:
    return phase == "Failed" and (reason in _REFUSED or reason.startswith("OutOf"))


class Refusals:
    """Nodes that refused pods of claims, and until when no pod is sent there."""

    def __init__(self) -> None:
        self._seen: set[str] = set()  # uids of refused pods
        self._times: dict[tuple[str, str], int] = {}
        self._until: dict[tuple[str, str], float] = {}

    def note(self, uid: str, claim: str, node: str, now: float) -> None:
        if uid in self._seen:
            return
        self._seen.add(uid)
        times = self._times[claim, node] = self._times.get((claim, node), 0) + 1
        self._until[claim, node] = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(times - 1, 10))

    def forget(self, uid: str) -> None:
        self._seen.discard(uid)

    def forget_claims(self, known: Callable[[str], bool]) -> None:
        self._times = {key: times for key, times in self._times.items() if known(key[0])}
        self._until = {key: until for key, until in self._until.items() if known(key[0])}

    def avoids(self, claim: str, node: str, now: float) -> bool:
        return now < self._until.get((claim, node), 0.0)

    def next(self, now: float) -> float | None:
        """Returns when the next pause ends."""
        return min((until for until in self._until.values() if until > now), default=None)
