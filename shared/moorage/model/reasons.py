"""Reasons why something is not placed: a stable code, numbers, and the controller that reports it. Codes are never renamed."""

from __future__ import annotations

from .base import Model, Value

CODES: dict[str, str] = {
    "ResourceShort": "No node of these clusters has enough of a resource free for one pod.",
    "CapacityShort": "Single pods fit, but these clusters do not have enough capacity for all pods of one object.",
    "PartMissing": "No node of these clusters has a part with the classes and traits of a group.",
    "PartShort": "No node of these clusters has parts with enough free for a group, or they serve fewer pods than there are.",
    "ZoneShort": "No zone of a node of these clusters has enough free for all that a pod needs of one zone.",
    "RelationFails": "Parts for each group are there, but not under the relation between them.",
    "HostPortTaken": "No node of these clusters has a host port free that a pod needs.",
    "SurgeShort": "An update starts pods beside older ones (maxSurge), none may be missing meanwhile, and these clusters lack room.",
    "SurgeLeftOut": "There is no room for pods that a rollout may start beside older ones; it goes on with some pods missing.",
    "LabelMissing": "No node of these clusters has a required label.",
    "NodesUnusable": "Every suitable node is not ready, is cordoned or has a taint that is not tolerated.",
    "PartGone": "A claimed part of a node is not reported any more. The claim stays, and counts again when the part is back.",
    "ChosenByKubelet": "Claims name parts of nodes, but the kubelet chooses those that a pod gets.",
    "PinnedByTemplate": "A ResourceQuota counts devices by class, so the templates of claims name the devices: pods restart when they get others.",
    "DeviceTainted": "Devices that would serve a need have taints that are not tolerated.",
    "DeviceFailed": "Devices failed, and nothing else in the fleet fits the pods that had them: the group waits.",
    "MassFailure": "More than half of the devices of a kind failed in the cluster within a minute: pods stay until they are back, or `moorage devices move`.",
    "PoolIncomplete": "Devices that would serve a need are in pools of which not all slices are there, so none of them counts.",
    "PoolInvalid": "Devices that would serve a need are in pools that make no sense, so none of them counts.",
    "SelectorError": "An expression that selects devices has an error on devices of these clusters.",
    "ClassNotFound": "No resource class has this name, and no cluster a DeviceClass of it.",
    "PackingFails": "Each object fits alone, but all pods of the group together cannot be assigned to nodes there.",
    "UpdateHoldsRoom": "Objects that an update makes smaller hold their room until their pods are gone; make it in two steps.",
    "PodAntiAffinity": "Required pod anti-affinity leaves fewer places than an object has pods.",
    "PodAffinity": "Required pod affinity leaves fewer places than an object has pods.",
    "TopologySpread": "Topology spread constraints leave fewer places than an object has pods.",
    "PodRulesFail": "All pods have room there, but not under their rules about each other: anti-affinity, affinity, spread.",
    "ClassForbidden": "No ClassGrant lets the project use the resource class, or name the algorithm.",
    "QuotaExceeded": "The project would hold more devices than a DeviceQuota allows.",
    "SearchBound": "The search for an assignment reached its limit; an assignment may exist.",
    "MachineUnknown": "No cluster has slots of the machine type.",
    "SlotShort": "These clusters have too few slots of the machine type that are free, and neither kept for a window nor away.",
    "SlotUnbound": "A guest got a slot and was not bound there; it is tried again after a while.",
    "NotAllowed": "The machine group or its window is for other projects or namespaces.",
    "NamespaceNotEnabled": "The namespace is there and not enabled for machines, so its pods get no slots.",
    "MeshUnreachable": "The cluster is cut off from the mesh: new guests wait, unless slots are set aside for this.",
    "WindowClosed": "The window has not begun, or windows keep the slots that are free.",
    "WindowLate": "The window has ended, or ends too soon for a pod to start.",
    "OtherControllerActive": "Another controller still acts on the same Machines; ours only reports.",
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
    "PatchTooLarge": "The contributions of all action controllers together exceed the size limit.",
    "UnreportedPods": "A rule of a pod concerns pods of others, which nobody reports; Kubernetes may refuse nodes.",
    "Unsupported": "No controller of this mesh can decide this kind of need.",
    "ExclusiveCoresUnknown": "The nodes do not report their CPU manager; cores may not be exclusive there.",
    "OptionalNotCombined": "The app has more optional needs than are combined; the lighter ones are granted where room is left.",
    "NotGuaranteed": "Another container of the pod breaks the Guaranteed class, so cores will not be exclusive.",
    "ClaimNotFound": "A pod names a ResourceClaim or template that is not among the app's objects; its devices are not counted.",
    "NotDedicated": "A container asks for PCPU, but is not Guaranteed with whole cores, so cores will not be exclusive.",
    "DecisionTooLarge": "The decision exceeds the size limit of a commit.",
    "RemovalUnconfirmed": "The cluster has not confirmed the removal; until then its claims count.",
    "Displaced": "Other pods took the room of pods that are still to start. What did not run yet is placed again.",
    "NodeRefused": "The kubelet of a node did not admit a pod. No pod of the object goes there until the node changes.",
    "RoleUnknown": "No node of these clusters knows the role of a pod, or its annotations contradict each other.",
    "RoleForbidden": "The nodes of these clusters keep the role of a pod for other namespaces.",
    "ApplyFailed": "The cluster refused an object.",
    "NoClusters": "No cluster of the fleet reports.",
    "Overtaken": "Other groups took the capacity each time it was found, until time was up; it is retried at once.",
    "Withdrawn": "The group was terminated or changed while it was being decided.",
}


class Reason(Model, kw_only=True):
    """One reason. `clusters` is the number of clusters that it holds for, `samples` names a few of them. Quantities are
    canonical strings. `group` is the suffix of a group of parts, `relation` one that excludes the clusters."""

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
    group: str = ""
    relation: str = ""

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
