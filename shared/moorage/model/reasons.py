"""Why something is not placed, as data: a stable code, the numbers, who said so. Codes are never renamed."""

from __future__ import annotations

from .base import Model, Value

CODES: dict[str, str] = {
    "ResourceShort": "No node of these clusters has enough of a resource free for one pod.",
    "CapacityShort": "Single pods fit, but these clusters have not enough room for all pods of one object together.",
    "LabelMissing": "No node of these clusters carries a label that is needed.",
    "NodesUnusable": "Every node that would do is not ready, cordoned or has a taint that is not tolerated.",
    "PackingFails": "Each object fits alone; no assignment of all pods of the group to nodes exists there.",
    "SearchBound": "The search for an assignment was cut off at its bound; there may be one.",
    "NotEnoughClusters": "Fewer clusters remain after all answers than the app wants.",
    "ReplicasConflict": "Two answers, or an answer and the document, want different numbers of clusters for one app.",
    "AffinityConflict": "No choice of clusters keeps the apps together or apart as asked.",
    "AppsConflict": "The apps fit there alone, but not together.",
    "PlacementExcludes": "These clusters are not among those that the placement allows.",
    "ControllerExcludes": "A controller does not allow these clusters and gave no reason of its own.",
    "ClusterStale": "The cluster has not reported for three periods; nothing new goes there.",
    "ClusterGone": "The cluster is no part of the fleet any more; what runs there is not known.",
    "ClusterCordoned": "The cluster is cordoned; nothing new goes there.",
    "ControllerTimeout": "A required controller did not answer before its deadline.",
    "ControllerError": "A required controller answered with an error or something that cannot be read.",
    "ConsumerMatchesNothing": "A consumer names an object or container that the manifests do not have.",
    "PatchConflict": "Two contributions set one field to different values.",
    "Unsupported": "The need is of a kind that nothing in this mesh can decide yet.",
    "ExclusiveCoresUnknown": "The nodes do not report their CPU manager; whole cores may not be exclusive there.",
    "NotGuaranteed": "Another container of the pod breaks the Guaranteed class, so cores will not be exclusive.",
    "DecisionTooLarge": "The decision is larger than one commit may be.",
    "RemovalUnconfirmed": "The cluster has not said yet that what is to go is gone; until then its claims count.",
    "Displaced": "Pods run elsewhere than claimed; the claim was assigned again.",
    "ApplyFailed": "The cluster refused an object.",
    "NoClusters": "The fleet has no cluster that reports.",
    "Overtaken": "Others took the room each time it was found, until the time was over; it is tried again at once.",
    "Withdrawn": "The group was terminated or changed while it was being decided.",
}


class Reason(Model, kw_only=True):
    """`clusters` counts those it holds for; `samples` names a few. Quantities are canonical strings."""

    code: str
    message: str = ""
    app: str = ""
    consumer: str = ""
    need: str = ""
    clusters: int = 0
    samples: list[str] = []
    needed: str = ""
    free: str = ""
    by: str = ""
    cluster: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"unknown reason code {self.code!r}")


class Warn(Value, kw_only=True, frozen=True):
    code: str
    message: str


def markdown() -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Reason codes",
        "",
        "Why something is not placed, or not quite as asked. Codes are never renamed. Each reason carries the app, the",
        "consumer, the need, the number of clusters it holds for, what is needed and what is free, and who said so.",
        "",
        "| code | means |",
        "|---|---|",
    ]
    lines += [f"| `{code}` | {about} |" for code, about in CODES.items()]
    return "\n".join(lines) + "\n"
