"""Reasons why something is not placed: a stable code, numbers, and the controller that reports it. Codes are never renamed."""

from __future__ import annotations

from .base import Model, Value

CODES: dict[str, str] = {
    "ResourceShort": "No node of these clusters has enough of a resource free for one pod.",
    "CapacityShort": "Single pods fit, but these clusters do not have enough capacity for all pods of one object.",
    "LabelMissing": "No node of these clusters has a required label.",
    "NodesUnusable": "Every suitable node is not ready, is cordoned or has a taint that is not tolerated.",
    "PackingFails": "Each object fits alone, but all pods of the group together cannot be assigned to nodes there.",
    "SearchBound": "The search for an assignment reached its limit; an assignment may exist.",
    "NotEnoughClusters": "Fewer clusters qualify than the app needs.",
    "ReplicasConflict": "Two answers, or an answer and the document, request different numbers of clusters for one app.",
    "AffinityConflict": "No choice of clusters satisfies the affinity rules of the apps.",
    "AppsConflict": "Each app fits on these clusters alone, but not together with the other.",
    "PlacementExcludes": "The placement does not allow these clusters.",
    "ControllerExcludes": "A controller does not allow these clusters and gave no reason.",
    "ClusterStale": "The cluster has not reported for three report periods; nothing new is placed there.",
    "ClusterGone": "The cluster is no longer in the fleet; pods may still run there.",
    "ClusterCordoned": "The cluster is cordoned; nothing new is placed there.",
    "ControllerTimeout": "A required controller did not answer before its deadline.",
    "ControllerError": "A required controller answered with an error or an invalid message.",
    "ConsumerMatchesNothing": "A consumer names an object or container that is not in the manifests.",
    "ConsumerAmbiguous": "A consumer names an object without its kind, and several objects have that name.",
    "ApiVersionDiffers": "A consumer names an object with another apiVersion than the manifests; it is used all the same.",
    "PatchConflict": "Two contributions set one field to different values.",
    "Unsupported": "No controller of this mesh can decide this kind of need.",
    "ExclusiveCoresUnknown": "The nodes do not report their CPU manager; cores may not be exclusive there.",
    "NotGuaranteed": "Another container of the pod breaks the Guaranteed class, so cores will not be exclusive.",
    "DecisionTooLarge": "The decision exceeds the size limit of a commit.",
    "RemovalUnconfirmed": "The cluster has not confirmed the removal; until then its claims count.",
    "Displaced": "Pods run on other nodes than claimed; the claim was assigned again.",
    "ApplyFailed": "The cluster refused an object.",
    "NoClusters": "No cluster of the fleet reports.",
    "Overtaken": "Other groups took the capacity each time it was found, until time was up; it is retried at once.",
    "Withdrawn": "The group was terminated or changed while it was being decided.",
}


class Reason(Model, kw_only=True):
    """One reason. `clusters` is the number of clusters that it holds for, `samples` names a few of them. Quantities are
    canonical strings."""

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
    """Returns the table as a page of the documentation."""
    lines = [
        "# Reason codes",
        "",
        "Reasons say why something is not placed, or not exactly as requested. Codes are never renamed. Each reason has the app,",
        "the consumer, the need, the number of clusters that it holds for, the needed and the free amount, and the controller",
        "that reports it.",
        "",
        "| code | meaning |",
        "|---|---|",
    ]
    lines += [f"| `{code}` | {about} |" for code, about in CODES.items()]
    return "\n".join(lines) + "\n"
