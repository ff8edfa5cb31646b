"""The fields of Kubernetes workloads that placement reads, as Structs to decode manifests with."""

from __future__ import annotations

import msgspec

Quantity = int | float | str


class _Fields(msgspec.Struct, rename="camel", gc=False):
    """Only the fields that placement reads. Kubernetes itself checks the rest; null means not given."""


class ResourceQuantities(_Fields):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class ContainerPort(_Fields):
    container_port: int | None = None
    host_port: int | None = None
    host_ip: str | None = msgspec.field(default=None, name="hostIP")
    protocol: str | None = None


class ContainerFields(_Fields):
    name: str
    resources: ResourceQuantities | None = None
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None


class SelectorRequirement(_Fields):
    key: str
    operator: str
    values: list[str] | None = None


class SelectorTerm(_Fields):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class RequiredNodeSelector(_Fields):
    node_selector_terms: list[SelectorTerm] | None = None


class NodeAffinityFields(_Fields):
    required: RequiredNodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class LabelSelector(_Fields):
    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


class PodAffinityTerm(_Fields):
    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PodAffinityFields(_Fields):
    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class AffinityFields(_Fields):
    node_affinity: NodeAffinityFields | None = None
    pod_affinity: PodAffinityFields | None = None
    pod_anti_affinity: PodAffinityFields | None = None


class TolerationFields(_Fields):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class TopologySpread(_Fields):
    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: str | None = None
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class PodClaimFields(_Fields):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpecFields(_Fields):
    containers: list[ContainerFields]
    init_containers: list[ContainerFields] | None = None
    resources: ResourceQuantities | None = None
    host_network: bool | None = None
    overhead: dict[str, Quantity] | None = None
    node_selector: dict[str, str] | None = None
    node_name: str | None = None
    affinity: AffinityFields | None = None
    tolerations: list[TolerationFields] | None = None
    topology_spread_constraints: list[TopologySpread] | None = None
    resource_claims: list[PodClaimFields] | None = None


class PodTemplateFields(_Fields):
    spec: PodSpecFields


class RollingUpdate(_Fields):
    max_surge: int | str | None = None
    max_unavailable: int | str | None = None


class UpdateStrategy(_Fields):
    type: str | None = None
    rolling_update: RollingUpdate | None = None


class WorkloadSpec(_Fields):
    template: PodTemplateFields
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    strategy: UpdateStrategy | None = None
    update_strategy: UpdateStrategy | None = None


class JobTemplateFields(_Fields):
    spec: WorkloadSpec


class CronJobSpec(_Fields):
    job_template: JobTemplateFields
