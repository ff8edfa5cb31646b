"""Reasons why something is not placed: a stable code, the numbers, and the controller. Codes are never renamed."""

from __future__ import annotations

from .base import Model, Value

CODES: dict[str, str] = {
    "ResourceShort": "No node of these clusters has enough of a resource free for one pod.",
    "CapacityShort": "Single pods fit, but these clusters have not enough room for all pods of one object together.",
    "LabelMissing": "No node of these clusters carries a label that is needed.",
    "NodesUnusable": "Every node that would do is not ready, cordoned or has a taint that is not tolerated.",
    "PackingFails": "Each object fits alone; no assignment of all pods of the group to nodes exists there.",
    "SearchBound": "The search for an assignment was cut off at its bound; there may be one.",
    "NotEnoughClusters": "Fewer clusters qualify than the app needs.",
    "ReplicasConflict": "Two answers, or an answer and the document, name different numbers of clusters for one app.",
    "AffinityConflict": "No choice of clusters satisfies the affinity rules of the apps.",
    "AppsConflict": "Each of the two apps fits there, but not both.",
    "PlacementExcludes": "The placement of the app excludes these clusters.",
    "ControllerExcludes": "A controller excludes these clusters and gave no reason.",
    "ClusterStale": "The cluster has not reported for three periods; nothing new goes there.",
    "ClusterGone": "The cluster is not part of the fleet any more; it is not known what runs there.",
    "ClusterCordoned": "The cluster is cordoned; nothing new goes there.",
    "ControllerTimeout": "A required controller did not answer before its deadline.",
    "ControllerError": "A required controller answered with an error or unreadably.",
    "ConsumerMatchesNothing": "A consumer names an object or container that is not in the manifests.",
    "PatchConflict": "Two contributions set one field to different values.",
    "Unsupported": "No worker of this mesh can decide this kind of need yet.",
    "ExclusiveCoresUnknown": "The nodes do not report their CPU manager; whole cores may not be exclusive there.",
    "NotGuaranteed": "Another container of the pod breaks the Guaranteed class, so cores will not be exclusive.",
    "DecisionTooLarge": "The decision is larger than one commit may be.",
    "RemovalUnconfirmed": "The cluster has not confirmed the removal of objects yet; until then their claims count.",
    "Displaced": "Pods run elsewhere than claimed; the claim was assigned again.",
    "ApplyFailed": "The cluster refused an object.",
    "NoClusters": "The fleet has no cluster that reports.",
    "Overtaken": "Other groups took the capacity first until the deadline; it is tried again at once.",
    "Withdrawn": "The group was terminated or changed while it was being decided.",
}


class Reason(Model, kw_only=True):
    """`clusters` is the number of clusters that it applies to; `samples` names a few. Quantities are canonical strings."""

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
    """Returns the table of codes as a page of the documentation."""
    lines = [
        "# Reason codes",
        "",
        "Why something is not placed, or not fully as requested. Codes are never renamed. Each reason has the app, the",
        "consumer, the need, the number of clusters that it applies to, the needed and free amounts, and the controller.",
        "",
        "| code | meaning |",
        "|---|---|",
    ]
    lines += [f"| `{code}` | {about} |" for code, about in CODES.items()]
    return "\n".join(lines) + "\n"
