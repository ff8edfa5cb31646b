"""From documents to shapes: what one pod of every object needs, once all intents of the group are laid over its manifest.
Pure; the same documents give the same revision, byte for byte."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from moorage.model.documents import (
    AffinityIntentSpec,
    App,
    Consumer,
    HpaIntentSpec,
    Need,
    PlacementIntentSpec,
)
from moorage.model.groups import Revision
from moorage.model.problems import Problem, Refused, Violation
from moorage.model.reasons import Warn
from moorage.model.shapes import (
    EXCLUSIVE,
    PODS,
    Intent,
    NeedRef,
    OptionalNeed,
    Requirement,
    Shape,
    ShapedApp,
)
from moorage.parsing import need_amount

from .lenient_decode import label_text
from .pod_templates import REPLICATED, PodTemplate, surge_of
from .validate import Accepted, AcceptedIntent
from .validation_rules import Objects, is_mandatory

_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


#: Only these may have requests below limits; of all others Kubernetes wants both equal.
_OVERCOMMITS = ("cpu", "memory", "ephemeral-storage")


class _Ask(NamedTuple):
    """A consumer and where it was written, for whoever has to correct it."""

    consumer: Consumer
    path: str

    @property
    def name(self) -> str:
        return self.consumer.name or self.consumer.object.name


def resolve(
    given: Accepted, attached: Iterable[AcceptedIntent] = (), *, revision: int = 1, instantiated: str = ""
) -> Revision:
    """Raises Refused where the documents cannot mean anything together."""
    group = str(given.group)
    apps = given.document.spec.apps
    own = sorted(attached, key=lambda a: a.key)
    _known_apps(own, [a.name for a in apps])
    warnings: list[Warn] = []
    errors: list[Violation] = []
    intents: list[Intent] = []
    shaped = []
    for i, (app, objects) in enumerate(zip(apps, given.objects, strict=True)):
        asks = [_Ask(c, f"spec.apps[{i}].consumers[{j}]") for j, c in enumerate(app.consumers)]
        for other in own:
            if isinstance(other.spec, HpaIntentSpec) and other.spec.app == app.name:
                asks += [_Ask(c, f"{other.key}: spec.consumers[{j}]") for j, c in enumerate(other.spec.consumers)]
        shapes = _shapes(app.name, objects, asks, errors, warnings)
        shaped.append(ShapedApp(name=app.name, replicas=_replicas(app, own, warnings), shapes=shapes))
        intents += _of_app(group, app)
    if errors:
        first = errors[0]
        detail = f"{first.path}: {first.message}"
        raise Refused(Problem(title=_TITLES[first.code], status=409, code=first.code, detail=detail, errors=errors))
    if given.document.spec.affinity:
        spec = AffinityIntentSpec(group=group, rules=given.document.spec.affinity)
        intents.append(Intent(kind="AffinityIntent", name=given.group.app, spec=msgspec.Raw(_encode(spec))))
    intents += [
        Intent(kind=a.document.kind, name=a.document.metadata.name, spec=msgspec.Raw(_encode(a.spec))) for a in own
    ]
    return Revision(
        group=group,
        revision=revision,
        tenant=given.group.project,
        apps=shaped,
        intents=intents,
        warnings=list(dict.fromkeys(warnings)),
        instantiated=instantiated,
    )


_TITLES = {
    "ConsumerMatchesNothing": "A consumer matches nothing",
    "ReplicasConflict": "Replicas contradict each other",
}


def _of_app(group: str, app: App) -> list[Intent]:
    """What an Application says of an app, in the words of the intents it stands for: controllers know only those."""
    found = []
    if app.consumers:
        hpa = HpaIntentSpec(group=group, app=app.name, consumers=app.consumers)
        found.append(Intent(kind="HpaIntent", name=app.name, spec=msgspec.Raw(_encode(hpa))))
    if app.placement is not None and (app.placement.all_of or app.placement.any_of or app.placement.sets):
        placement = PlacementIntentSpec(
            group=group,
            app=app.name,
            all_of=app.placement.all_of,
            any_of=app.placement.any_of,
            sets=app.placement.sets,
        )
        found.append(Intent(kind="PlacementIntent", name=app.name, spec=msgspec.Raw(_encode(placement))))
    return found


def _known_apps(attached: Sequence[AcceptedIntent], apps: list[str]) -> None:
    errors = []
    for intent in attached:
        named: list[tuple[str, str]] = []
        if isinstance(intent.spec, HpaIntentSpec | PlacementIntentSpec):
            named = [("spec.app", intent.spec.app)]
        elif isinstance(intent.spec, AffinityIntentSpec):
            named = [
                (f"spec.rules[{i}]", n) for i, rule in enumerate(intent.spec.rules) for n in rule.together + rule.apart
            ]
        errors += [
            Violation(
                path=f"{intent.key}: {path}",
                code="UnknownApp",
                message=f"the group has no app {name!r}; there are {', '.join(apps)}",
            )
            for path, name in named
            if name not in apps
        ]
    if errors:
        detail = f"{errors[0].path}: {errors[0].message}"
        raise Refused(Problem(title="Unknown app", status=409, code="UnknownApp", detail=detail, errors=errors))


def _replicas(app: App, attached: Sequence[AcceptedIntent], warnings: list[Warn]) -> int:
    """On how many clusters the app runs: its own word, else the sum of its sets (0: as many as they select), else 1.
    Where the two contradict, the answers of the controllers will, too; the merger then says so."""
    sets = [
        s for a in attached if isinstance(a.spec, PlacementIntentSpec) and a.spec.app == app.name for s in a.spec.sets
    ]
    if app.placement is not None:
        sets = [*app.placement.sets, *sets]
    if not sets:
        return 1 if app.replicas is None else app.replicas
    total = 0 if any(s.count == 0 for s in sets) else sum(s.count for s in sets)
    if app.replicas is None:
        return total
    if total and app.replicas != total:
        warnings.append(
            Warn(
                code="ReplicasConflict",
                message=f"app {app.name}: replicas is {app.replicas}, but its placement sets count {total} together",
            )
        )
    return app.replicas


def _shapes(
    app: str, objects: Objects, asks: Sequence[_Ask], errors: list[Violation], warnings: list[Warn]
) -> list[Shape]:
    by_ref = {(p.api_version, p.kind, p.name): p for p in objects.pods}
    matched: dict[tuple[str, str, str], list[_Ask]] = defaultdict(list)
    for ask in asks:
        ref = ask.consumer.object
        key = (ref.api_version, ref.kind, ref.name)
        pods = by_ref.get(key)
        if pods is None:
            message = f"consumer {ask.name!r} of app {app!r} names {ref.kind}/{ref.name} ({ref.api_version}), {_instead(key, objects)}"
            errors.append(Violation(path=f"{ask.path}.object", code="ConsumerMatchesNothing", message=message))
            continue
        wanted = ask.consumer.container
        if wanted and all(c.name != wanted for c in pods.containers):
            have = ", ".join(c.name for c in pods.containers)
            message = f"consumer {ask.name!r} of app {app!r} names container {wanted!r}; {pods.object} has {have}"
            errors.append(Violation(path=f"{ask.path}.container", code="ConsumerMatchesNothing", message=message))
            continue
        matched[key].append(ask)
    found = (_shape(pods, matched.get(key, ()), errors, warnings) for key, pods in by_ref.items())
    return [shape for shape in found if shape is not None]


def _instead(key: tuple[str, str, str], objects: Objects) -> str:
    if any((m["apiVersion"], m["kind"], m["metadata"]["name"]) == key for m in objects.manifests):
        return "which has no pods"
    if not objects.manifests:
        return "but the app has no manifests"
    have = [f"{p.object} ({p.api_version})" for p in objects.pods]
    have = have or [f"{m['kind']}/{m['metadata']['name']} ({m['apiVersion']})" for m in objects.manifests]
    more = f" and {len(have) - 8} more" if len(have) > 8 else ""
    return f"but the manifests have {', '.join(have[:8])}{more}"


class _Laid(NamedTuple):
    """Needs laid over one container: what it requests and may use, and the names of the resources that needs set."""

    requests: dict[str, int]
    limits: dict[str, int]
    set: dict[str, str]  # resource → consumer


def _shape(pods: PodTemplate, asks: Sequence[_Ask], errors: list[Violation], warnings: list[Warn]) -> Shape | None:
    count = _count(pods, asks, errors)
    if count == 0:
        return None  # nothing runs, so nothing needs room; the object itself is carried along
    laid = {c.name: _Laid(dict(c.requests), dict(c.limits), {}) for c in pods.containers}
    needs: list[NeedRef] = []
    labels: dict[str, list[str]] = {}
    optional: list[tuple[_Ask, Need]] = []
    for ask in asks:
        container = laid.get(ask.consumer.container)
        for need in ask.consumer.needs:
            if not is_mandatory(need):
                optional.append((ask, need))
            elif need.label:
                value = label_text(need.value)
                labels.setdefault(need.label, []).append(value)
                needs.append(NeedRef(consumer=ask.name, name=need.label, label=(need.label, value)))
            elif container is not None:
                wanted = _amounts(need)[0]
                _lay(need, container, ask)
                needs.append(NeedRef(consumer=ask.name, name=need.resource, amount=wanted))
    resources = _pod(pods, laid)
    needs += _exclusive(pods, laid, resources, warnings)
    needs += _of_manifest(resources, needs)
    warnings += [
        Warn(
            code="NotConsidered", message=f"{pods.object}: {rule} is left to Kubernetes; placement does not look at it"
        )
        for rule in pods.ignored
    ]
    always = [
        Requirement(key=k, operator="In", values=(v,)) for k, values in labels.items() for v in dict.fromkeys(values)
    ]
    terms = [term + always for term in pods.terms] if pods.terms else ([always] if always else [])
    wishes = [_wish(pods, ask, need, laid, resources.get(EXCLUSIVE, 0)) for ask, need in optional]
    tolerations = list(dict.fromkeys(pods.tolerations))
    per_node = pods.kind == "DaemonSet"
    fits = (resources, terms, tolerations, wishes, count, per_node)
    return Shape(
        key=_hash(fits),
        object=pods.object,
        count=count,
        per_node=per_node,
        resources=resources,
        terms=terms,
        tolerations=tolerations,
        optional=wishes,
        needs=needs,
        template=_hash((pods.template, _said(asks))),
        surge=surge_of(pods, count),
    )


def _hash(value: Any) -> str:
    return hashlib.blake2b(_canonical(value), digest_size=12).hexdigest()


def _count(pods: PodTemplate, asks: Sequence[_Ask], errors: list[Violation]) -> int:
    if pods.kind not in REPLICATED:
        return pods.count
    given = [(a.consumer.replicas, a.path) for a in asks if a.consumer.replicas is not None]
    numbers = sorted({n for n, _ in given})
    if len(numbers) > 1:
        message = f"consumers of {pods.object} want {' and '.join(map(str, numbers))} pods in each cluster"
        errors.append(Violation(path=f"{given[-1][1]}.replicas", code="ReplicasConflict", message=message))
    return numbers[0] if numbers else pods.count


def _amounts(need: Need) -> tuple[int, int | None]:
    """What is requested, and the limit if there is one. Limits alone are requests too, as in Kubernetes; of what is
    counted (devices) Kubernetes gives exactly what is requested."""
    requests = need.requests if need.requests is not None else need.limits
    assert requests is not None
    wanted = need_amount(need.resource, requests, need.units)
    if need.resource not in _OVERCOMMITS:
        return wanted, wanted
    return wanted, None if need.limits is None else need_amount(need.resource, need.limits, need.units)


def _lay(need: Need, container: _Laid, ask: _Ask) -> None:
    """A need replaces what the manifest says of a resource; needs of several consumers for it add up. A limit that would
    be below the requests goes up with them, as in what is written into the manifest."""
    wanted, limit = _amounts(need)
    name = need.resource
    if name not in container.set:
        container.set[name] = ask.name
        container.requests[name] = wanted
        if limit is not None:
            container.limits[name] = limit
    else:
        container.requests[name] += wanted
        if limit is not None:
            container.limits[name] = container.limits.get(name, 0) + limit
    if container.limits.get(name, container.requests[name]) < container.requests[name]:
        container.limits[name] = container.requests[name]


def _pod(pods: PodTemplate, laid: Mapping[str, _Laid]) -> dict[str, int]:
    """What the scheduler of Kubernetes counts."""
    total = _at_once(pods, {name: one.requests for name, one in laid.items()})
    for resource, value in pods.whole.items():
        total[resource] = max(value, total.get(resource, 0))
    for resource, value in pods.overhead.items():
        total[resource] = total.get(resource, 0) + value
    total = {r: v for r, v in sorted(total.items()) if v}
    total[PODS] = 1
    return total


def _at_once(pods: PodTemplate, amounts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Of amounts by container, what is held at one time: init containers run one after the other before the rest, those
    that stay (sidecars) beside all that come later."""
    running: dict[str, int] = defaultdict(int)
    peak: dict[str, int] = {}
    # Kubernetes starts init containers in order; the others follow.
    for container in (c for c in pods.containers if c.init):
        for resource, value in amounts[container.name].items():
            if container.sidecar:
                running[resource] += value
                peak[resource] = max(peak.get(resource, 0), running[resource])
            else:
                peak[resource] = max(peak.get(resource, 0), running[resource] + value)
    for container in (c for c in pods.containers if not c.init):
        for resource, value in amounts[container.name].items():
            running[resource] += value
    return {r: max(running.get(r, 0), peak.get(r, 0)) for r in running.keys() | peak.keys()}


def _exclusive(
    pods: PodTemplate, laid: Mapping[str, _Laid], resources: dict[str, int], warnings: list[Warn]
) -> list[NeedRef]:
    """Whole cores of one's own, asked for by an integer cpu need with requests = limits for cpu and memory; Kubernetes
    gives them only where the whole pod is Guaranteed."""
    asking = [c.name for c in pods.containers if "cpu" in laid[c.name].set and _whole_cores(laid[c.name])]
    if not asking:
        return []
    loose = [c.name for c in pods.containers if not _guaranteed(laid[c.name])]
    if loose:
        names = ", ".join(loose)
        text = f"{pods.object}: containers {names} have no equal requests and limits for cpu and memory"
        warnings.append(Warn(code="NotGuaranteed", message=f"{text}, so {asking[0]} gets no exclusive cores"))
        return []
    resources[EXCLUSIVE] = _cores(pods, laid)
    return [
        NeedRef(consumer=laid[name].set["cpu"], name=EXCLUSIVE, amount=laid[name].requests["cpu"] // 1000)
        for name in asking
    ]


def _cores(pods: PodTemplate, laid: Mapping[str, _Laid]) -> int:
    """The exclusive cores that a static CPU manager takes for a pod: for every container with whole ones, whoever asked."""
    if not all(_guaranteed(laid[c.name]) for c in pods.containers):
        return 0
    cores = {n: {EXCLUSIVE: one.requests["cpu"] // 1000} if _whole_cores(one) else {} for n, one in laid.items()}
    return _at_once(pods, cores).get(EXCLUSIVE, 0)


def _guaranteed(container: _Laid) -> bool:
    return all(
        container.limits.get(r, 0) > 0 and container.requests.get(r) == container.limits[r] for r in ("cpu", "memory")
    )


def _whole_cores(container: _Laid) -> bool:
    return container.requests["cpu"] % 1000 == 0 and _guaranteed(container)


def _of_manifest(resources: Mapping[str, int], needs: Sequence[NeedRef]) -> list[NeedRef]:
    """What the pod needs besides its consumers' needs; nobody asked for it by name."""
    asked: dict[str, int] = defaultdict(int)
    for need in needs:
        asked[need.name] += need.amount
    return [
        NeedRef(consumer="", name=resource, amount=value - asked[resource])
        for resource, value in resources.items()
        if resource != PODS and value > asked[resource]
    ]


def _wish(pods: PodTemplate, ask: _Ask, need: Need, laid: Mapping[str, _Laid], cores: int) -> OptionalNeed:
    """`cores`: the exclusive ones that the pod has without it."""
    weight = need.weight or 1
    if need.label:
        return OptionalNeed(
            consumer=ask.name, name=need.label, weight=weight, label=(need.label, label_text(need.value))
        )
    # On top of what mandatory needs ask for, but instead of what the manifest has; a wish for less than that is met.
    name, container = need.resource, laid[ask.consumer.container]
    wider = _Laid(dict(container.requests), dict(container.limits), dict(container.set))
    _lay(need, wider, ask)
    more = {name: wider.requests[name] - container.requests.get(name, 0)}
    if name == "cpu" and _whole_cores(wider):
        more[EXCLUSIVE] = _cores(pods, {**laid, ask.consumer.container: wider}) - cores
    return OptionalNeed(
        consumer=ask.name, name=name, weight=weight, resources={r: amount for r, amount in more.items() if amount > 0}
    )


def _said(asks: Sequence[_Ask]) -> list[Any]:
    """What consumers' needs make of the pod template, however they are spelled, called and ordered."""
    sums: dict[tuple[str, str], list[int]] = {}
    rest: list[Any] = []
    for ask in asks:
        container = ask.consumer.container
        for need in ask.consumer.needs:
            if need.label:
                weight = 0 if is_mandatory(need) else need.weight or 1
                rest.append((need.label, label_text(need.value), weight))
                continue
            wanted, limit = _amounts(need)
            if is_mandatory(need):
                known = sums.setdefault((container, need.resource), [0, 0])
                known[0], known[1] = known[0] + wanted, known[1] + (limit or 0)
            else:
                rest.append((container, need.resource, wanted, limit or 0))
    return [sorted(sums.items()), sorted(set(rest), key=repr)]
