"""Resolves the rules of pods about other pods: required affinity and anti-affinity, and topology spread. Their selectors are
evaluated against the pod templates of the group; pods of others are not known. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from moorage.model.object_names import CLAIM
from moorage.model.shapes import PodRule, Requirement
from moorage.selectors import requirement_matches

from .diagnostics import Diagnostics
from .pod_fields import LabelSelector, PodAffinityTerm, SelectorRequirement
from .pod_templates import PodTemplate

_canonical = msgspec.json.Encoder(order="deterministic").encode
_NAMESPACE = "kubernetes.io/metadata.name"
#: Labels that controllers give to pods: all pods of an object have the same value, which nobody can know before.
_OF_OBJECT = (CLAIM,)
_GENERATED = {
    "Deployment": ("pod-template-hash",),
    "StatefulSet": ("controller-revision-hash",),
    "DaemonSet": ("controller-revision-hash", "pod-template-generation"),
    "Job": ("controller-uid", "batch.kubernetes.io/controller-uid"),
    "CronJob": ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"),
}
#: Labels whose values differ between the pods of an object.
_OF_POD = (
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
)


class PodRules(NamedTuple):
    """The rules of an object's pods, and the selectors of rules of the group that select them."""

    rules: list[PodRule]
    marks: list[str]


class _Pods(NamedTuple):
    """The pods of one object as selectors see them."""

    app: str
    template: PodTemplate
    labels: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.app}: {self.template.object}"


class _Selector(NamedTuple):
    """Selects pods by labels and namespace. `namespaces` None: all of them. `selects_nothing`: none was given."""

    requirements: tuple[Requirement, ...]
    namespaces: tuple[str, ...] | None
    namespace_selector: tuple[Requirement, ...] | None = None
    selects_nothing: bool = False

    def matches(self, pods: _Pods) -> bool | None:
        """Returns whether it selects the pods; None where that differs between them, or depends on labels of namespaces."""
        if self.selects_nothing:
            return False
        in_namespace = self._in_namespace(pods.template.namespace)
        if in_namespace is False or not all(
            requirement_matches(r, pods.labels.get(r.key)) for r in self.requirements if r.key not in _OF_POD
        ):
            return False
        if any(r.key in _OF_POD for r in self.requirements):
            return None
        return in_namespace

    def _in_namespace(self, namespace: str) -> bool | None:
        if self.namespaces is None or namespace in self.namespaces:
            return True
        if self.namespace_selector is None:
            return False
        if any(r.key != _NAMESPACE for r in self.namespace_selector):
            return None
        return all(requirement_matches(r, namespace) for r in self.namespace_selector)

    def goes_beyond(self, namespaces: Iterable[str]) -> bool:
        """Returns whether it may select pods in other namespaces than these."""
        if self.namespaces is None or self.namespace_selector is not None:
            return True
        return not set(self.namespaces) <= set(namespaces)


class _LabelIndex:
    """Finds pods by label, so that a group of many objects with rules is not compared pair by pair."""

    def __init__(self, group: Sequence[_Pods]) -> None:
        self._group = group
        self._numbers: dict[tuple[str, str], list[int]] = {}
        for number, pods in enumerate(group):
            for label in pods.labels.items():
                self._numbers.setdefault(label, []).append(number)

    def candidates(self, selector: _Selector) -> Sequence[_Pods]:
        """Returns the pods that the selector may match, in order."""
        equal = [r for r in selector.requirements if r.operator == "In" and r.key not in _OF_POD]
        if not equal:
            return self._group
        found: list[set[int]] = [{n for v in r.values for n in self._numbers.get((r.key, v), ())} for r in equal]
        fewest = min(found, key=len)
        return [self._group[number] for number in sorted(fewest)]


class _Rule(NamedTuple):
    """A rule with its selectors, all of which a pod must match."""

    rule: PodRule
    selectors: tuple[_Selector, ...]
    about: str

    @property
    def mark(self) -> str:
        return hashlib.blake2b(_canonical(sorted(self.selectors, key=repr)), digest_size=6).hexdigest()

    def matches(self, pods: _Pods) -> bool | None:
        found = [selector.matches(pods) for selector in self.selectors]
        return False if False in found else None if None in found else True


def resolve_rules(
    apps: Sequence[tuple[str, Sequence[PodTemplate]]], diagnostics: Diagnostics
) -> dict[str, dict[str, PodRules]]:
    """Returns the rules by app and object, of those that have any or are selected by one."""
    group = [_Pods(app, template, _labels(template)) for app, templates in apps for template in templates]
    found: dict[str, dict[str, PodRules]] = {}
    if not any(any(pods.template.rules) for pods in group):
        return found
    namespaces = {pods.template.namespace for pods in group}

    index = _LabelIndex(group)

    def of(pods: _Pods) -> PodRules:
        return found.setdefault(pods.app, {}).setdefault(pods.template.object, PodRules([], []))

    for pods in group:
        for rule in _rules(pods):
            candidates = index.candidates(rule.selectors[0])
            matches = [rule.matches(other) for other in candidates]
            if None in matches:
                message = f"{pods.name}: {rule.about} depends on labels that are not known before the pods are"
                diagnostics.warn("NotConsidered", f"{message}; it is left to Kubernetes")
                continue
            selected = [other for other, match in zip(candidates, matches, strict=True) if match]
            counts = any(selector.requirements for selector in rule.selectors) or rule.rule.kind != "spread"
            nothing = any(selector.selects_nothing for selector in rule.selectors)
            empty = nothing or not counts
            beyond = any(s.goes_beyond(namespaces) or not s.requirements for s in rule.selectors)
            if not empty and (not selected or beyond):
                message = f"{pods.name}: {rule.about} concerns pods that are not of this group and that nobody reports"
                diagnostics.warn("UnreportedPods", f"{message}; because of them Kubernetes may refuse nodes")
            # Pods that must be near to nothing at all never start.
            marked = rule.mark if (selected and counts) or (nothing and rule.rule.kind == "near") else ""
            if marked or rule.rule.kind != "apart":  # without pods, only the label of the node remains of the others
                of(pods).rules.append(
                    msgspec.structs.replace(rule.rule, pods=marked, shared=any(other is not pods for other in selected))
                )
            for other in selected if marked else ():
                if marked not in of(other).marks:
                    of(other).marks.append(marked)
    return found


def _labels(template: PodTemplate) -> dict[str, str]:
    """The labels of the pods. Values that controllers make up equal nothing that a selector can name."""
    labels = dict(template.labels)
    if template.kind == "Job":
        labels |= dict.fromkeys(("job-name", "batch.kubernetes.io/job-name"), template.name)
    unique = f"\0{template.namespace}/{template.object}"
    return labels | dict.fromkeys((*_GENERATED.get(template.kind, ()), *_OF_OBJECT), unique)


def _rules(pods: _Pods) -> Iterator[_Rule]:
    rules = pods.template.rules
    for term in rules.apart:
        rule = PodRule(kind="apart", key=term.topology_key)
        yield _Rule(rule, (_term_selector(term, pods),), f"anti-affinity by {term.topology_key}")
    # Kubernetes counts only pods that match the selectors of all terms.
    selectors = tuple(_term_selector(term, pods) for term in rules.near)
    for term in rules.near:
        yield _Rule(PodRule(kind="near", key=term.topology_key), selectors, f"affinity by {term.topology_key}")
    for spread in rules.spread:
        rule = PodRule(
            kind="spread",
            key=spread.topology_key,
            max_skew=spread.max_skew,
            min_domains=1 if spread.min_domains is None else spread.min_domains,
            honor_affinity=spread.node_affinity_policy != "Ignore",
            honor_taints=spread.node_taints_policy == "Honor",
        )
        own = (pods.template.namespace,)
        selector = _selector(spread.label_selector, spread.match_label_keys, None, pods, own)
        yield _Rule(rule, (selector,), f"topology spread by {spread.topology_key}")


def _term_selector(term: PodAffinityTerm, pods: _Pods) -> _Selector:
    namespaces: tuple[str, ...] | None = tuple(sorted(set(term.namespaces or ())))
    chosen = None
    if term.namespace_selector is not None:
        chosen = _requirements(term.namespace_selector)
        if not chosen:
            namespaces, chosen = None, None
    elif not namespaces:
        namespaces = (pods.template.namespace,)
    found = _selector(term.label_selector, term.match_label_keys, term.mismatch_label_keys, pods, namespaces)
    return found._replace(namespace_selector=chosen)


def _selector(
    selector: LabelSelector | None,
    match_keys: list[str] | None,
    mismatch_keys: list[str] | None,
    pods: _Pods,
    namespaces: tuple[str, ...] | None,
) -> _Selector:
    """The selector with the pod's own values of keys that must match, or must not."""
    if selector is None:
        return _Selector((), namespaces, selects_nothing=True)
    requirements = list(_requirements(selector))
    for keys, operator in ((match_keys, "In"), (mismatch_keys, "NotIn")):
        for key in keys or ():
            if key in _OF_POD:
                requirements.append(Requirement(key=key, operator=operator))
            elif key in pods.labels:
                requirements.append(Requirement(key=key, operator=operator, values=(pods.labels[key],)))
    return _Selector(tuple(sorted(set(requirements), key=repr)), namespaces)


def _requirements(selector: LabelSelector) -> tuple[Requirement, ...]:
    equal = [Requirement(key=k, operator="In", values=(v,)) for k, v in (selector.match_labels or {}).items()]
    return (*equal, *map(_requirement, selector.match_expressions or ()))


def _requirement(given: SelectorRequirement) -> Requirement:
    return Requirement(key=given.key, operator=given.operator, values=tuple(sorted(given.values or ())))
