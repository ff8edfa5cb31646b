"""From whatever a client writes to the one form that is kept: other spellings of a field's name, the older shapes of
consumers and requirements, numbers as text. Everything that is wrong is listed; what nobody knows is left out and told."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec

from moorage.model import v2_bodies
from moorage.model.documents import Need
from moorage.model.names import is_name
from moorage.model.problems import Problem, Refused, Violation, invalid
from moorage.model.reasons import Warn
from moorage.model.v2_resources import COMPOSITE_APP, ResourceKind
from moorage.podspec.needs import label_text

from . import lenient_decode, validation_rules

NAME_IS = "must be 1 to 128 of letters, digits, '-', '_' and '.', with a letter or digit at both ends"

#: What a field may be called besides its own name, by the type that has it; case, dashes and underscores never matter.
_ALIASES: dict[type[msgspec.Struct], dict[str, str]] = {
    v2_bodies.CompositeAppSpec: {"version": "compositeAppVersion"},
    v2_bodies.OfAppSpec: {"appname": "app"},
    v2_bodies.AppIntentSpec: {"appname": "app"},
    v2_bodies.OverrideValues: {"appname": "app"},
    v2_bodies.GroupSpec: {"profile": "compositeProfile"},
    v2_bodies.ClusterTerm: {
        "provider": "clusterProvider",
        "providername": "clusterProvider",
        "clusterprovidername": "clusterProvider",
        "clustername": "cluster",
        "clusterlabelname": "clusterLabel",
        "label": "clusterLabel",
        "labelname": "clusterLabel",
    },
    v2_bodies.ConsumerSpec: {"containername": "container"},
    v2_bodies.ClusterLabel: {"labelname": "clusterLabel", "label": "clusterLabel"},
    v2_bodies.ClusterReferenceSpec: {
        "provider": "clusterProvider",
        "clusterprovidername": "clusterProvider",
        "clustername": "cluster",
    },
    v2_bodies.KeyValues: {"keyvalue": "kv"},
}
#: Read-only parts of answers: who sends back what was got is not told that they mean nothing.
_SHOWN = {"resourceconsumers", "resourcerequirements", "status"}
_LABEL = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_ALLOCATABLE, _PROPERTY = ("requests", "limits", "units"), ("key", "value")


class Read(NamedTuple):
    """A body in its one form, with the names it gives itself."""

    body: msgspec.Struct
    names: tuple[str, ...]
    warnings: tuple[Warn, ...]


@lru_cache(4096)
def plain(key: str) -> str:
    return key.replace("-", "").replace("_", "").lower()


def read(kind: ResourceKind, data: Any) -> Read:
    """Raises Refused with every violation."""
    if data is None:
        problem = Problem(title="Not readable", status=400, code="Empty", detail="the body is empty")
        raise Refused(problem)
    if not isinstance(data, dict):
        raise Refused(invalid([Violation(path="", code="WrongType", message="the body must be an object")]))
    found: list[Violation] = []
    data = _spelled(data, kind.body, "", found)
    if kind.body is v2_bodies.Consumer:
        data = _flat_consumer(data, found)
    if kind.body is v2_bodies.Requirement:
        body: msgspec.Struct = _requirement(data, found)
    else:
        body = lenient_decode.struct(data, kind.body, "", found)
    if isinstance(body, v2_bodies.ClusterLabel):
        names: tuple[str, ...] = (body.cluster_label,)
        _label(body.cluster_label, found)
    else:
        meta: v2_bodies.Meta = body.metadata  # type: ignore[attr-defined]
        _meta(meta, found)
        names = (meta.name,)
        if kind is COMPOSITE_APP:
            assert isinstance(body, v2_bodies.CompositeApp)
            names = (meta.name, body.spec.composite_app_version)
            if names[1] and not is_name(names[1]):
                found.append(Violation(path="spec.compositeAppVersion", code="InvalidName", message=NAME_IS))
    _more(body, found)
    errors = [v for v in found if v.code != "UnknownField"]
    if errors:
        first: dict[str, Violation] = {}
        for error in errors:
            first.setdefault(error.path, error)
        raise Refused(invalid(list(first.values())))
    warnings = tuple(Warn(code=v.code, message=f"{v.path}: {v.message}") for v in found)
    return Read(body, names, warnings)


# --- spelling --------------------------------------------------------------------------------------------------------


@cache
def _words(kind: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, str]]:
    """A type's fields, and what else they may be called."""
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(kind)}
    return fields, {plain(name): name for name in fields} | _ALIASES.get(kind, {})


def _spelled(data: Any, kind: type[msgspec.Struct], path: str, found: list[Violation]) -> Any:
    """Keys as the type has them, all the way down."""
    if not isinstance(data, dict):
        return data
    fields, known = _words(kind)
    result: dict[str, Any] = {}
    said: dict[str, str] = {}
    for key, value in data.items():
        name: str = key if key in fields else known.get(plain(str(key)), str(key))
        at = f"{path}.{key}" if path else str(key)
        if name not in fields and plain(str(key)) in _SHOWN:
            continue
        if name in result:
            if result[name] != value:
                message = f"is {value!r}, but {said[name]} means the same and is {result[name]!r}"
                found.append(Violation(path=at, code="Contradiction", message=message[:300]))
            continue
        said[name] = str(key)
        result[name] = _inside(value, fields[name], at, found) if name in fields else value
    return result


def _inside(value: Any, kind: Any, path: str, found: list[Violation]) -> Any:
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        # Of these the older shapes have fields of their own.
        if kind in (v2_bodies.ConsumerSpec, v2_bodies.RequirementSpec):
            return value
        return _spelled(value, kind, path, found)
    args = getattr(kind, "__args__", ())
    if isinstance(value, list) and args and isinstance(args[0], type) and issubclass(args[0], msgspec.Struct):
        return [_spelled(item, args[0], f"{path}[{i}]", found) for i, item in enumerate(value)]
    return value


def _flat_consumer(data: dict[str, Any], found: list[Violation]) -> dict[str, Any]:
    """`spec.consumer.{apiVersion, kind, name, container-name}` as well as `spec.{…, container}`."""
    spec = data.get("spec")
    if not isinstance(spec, dict):
        return data
    spec = {("consumer" if plain(str(k)) == "consumer" else k): v for k, v in spec.items()}
    inner = spec.pop("consumer", None)
    flat = _spelled(spec, v2_bodies.ConsumerSpec, "spec", found)
    if inner is None:
        return {**data, "spec": flat}
    if not isinstance(inner, dict):
        found.append(Violation(path="spec.consumer", code="WrongType", message="must be an object"))
        return {**data, "spec": flat}
    nested = _spelled(inner, v2_bodies.ConsumerSpec, "spec.consumer", found)
    for name in flat.keys() & nested.keys():
        if flat[name] != nested[name]:
            message = "is written twice, with and without consumer, and differs"
            found.append(Violation(path=f"spec.{name}", code="Contradiction", message=message))
    return {**data, "spec": {**flat, **nested}}


# --- requirements ----------------------------------------------------------------------------------------------------


class _Spec(msgspec.Struct, rename="camel", kw_only=True):
    mandatory: bool | None = None
    weight: int | None = None
    allocatable: bool | None = None


class _Given(v2_bodies.Body, kw_only=True):
    name: str | None = None
    requests: int | float | str | None = None
    limits: int | float | str | None = None
    units: str | None = None
    key: str | None = None
    value: str | bool | int | float | None = None


class _Metadata(v2_bodies.Body, kw_only=True):
    metadata: v2_bodies.Meta
    spec: dict[str, Any]


def _requirement(data: dict[str, Any], found: list[Violation]) -> v2_bodies.Requirement:
    outer = lenient_decode.struct(data, _Metadata, "", found)
    given = outer.spec if isinstance(data.get("spec"), dict) else {}
    own, flat_names = _words(_Spec)[1], _words(_Given)[1]
    top: dict[str, Any] = {}
    flat: dict[str, Any] = {}
    nested: Any = None
    for key, value in given.items():
        word = plain(str(key))
        if word in own:
            top[own[word]] = value
        elif word in flat_names:
            flat[flat_names[word]] = value
        elif word == "resource":
            nested = value
        else:
            known = "mandatory, weight, allocatable, resource"
            found.append(
                Violation(path=f"spec.{key}", code="UnknownField", message=f"unknown field; known are {known}")
            )
    spec = lenient_decode.struct(top, _Spec, "spec", found)
    at = "spec"
    if nested is not None:
        at = "spec.resource"
        if flat:
            message = f"says what is needed a second time; spec.{min(flat)} stands outside of it"
            found.append(Violation(path=at, code="Contradiction", message=message))
    source = flat if nested is None else _spelled(nested, _Given, at, found)
    before = len(found)
    what = lenient_decode.struct(source, _Given, at, found)
    resource = _resource(spec, what, at, found, readable=len(found) == before)
    mandatory = (spec.weight is None) if spec.mandatory is None else spec.mandatory
    return v2_bodies.Requirement(
        metadata=outer.metadata,
        spec=v2_bodies.RequirementSpec(
            mandatory=mandatory,
            allocatable=not resource.key,
            weight=msgspec.UNSET if spec.weight is None else spec.weight,
            resource=resource,
        ),
    )


def _resource(spec: _Spec, given: _Given, at: str, found: list[Violation], *, readable: bool) -> v2_bodies.Amount:
    def report(path: str, code: str, message: str) -> None:
        found.append(Violation(path=path, code=code, message=message))

    if spec.weight is not None and not 1 <= spec.weight <= 10:
        report("spec.weight", "OutOfRange", "must be 1 to 10")
    amounts = [f for f in _ALLOCATABLE if getattr(given, f) is not None]
    labels = [f for f in _PROPERTY if getattr(given, f) is not None]
    if amounts and labels:
        report(
            f"{at}.{labels[0]}",
            "Contradiction",
            f"belongs to a label of nodes, {amounts[0]} to a resource; a requirement is one or the other",
        )
        return v2_bodies.Amount()
    allocatable = spec.allocatable
    if allocatable is None:
        allocatable = not labels
    elif allocatable and labels:
        report(f"{at}.{labels[0]}", "Contradiction", "is not for what is allocatable: that has requests and limits")
    elif not allocatable and amounts:
        report(f"{at}.{amounts[0]}", "Contradiction", "is only for what is allocatable: a label has a value")
    if allocatable:
        if not given.name:
            report(f"{at}.name", "Required", "is required: the resource as Kubernetes calls it")
        if not labels and readable:
            need = Need(
                resource=given.name or "cpu", requests=given.requests, limits=given.limits, units=given.units or ""
            )
            _quantities(need, at, found)
        return v2_bodies.Amount(
            name=given.name or "",
            requests=_number(given.requests),
            limits=_number(given.limits),
            units=given.units or "",
        )
    key = given.key or given.name or ""
    if given.key and given.name and given.key != given.name:
        report(f"{at}.name", "Contradiction", f"is {given.name!r}, but key is {given.key!r}")
    if not key:
        report(f"{at}.{'name' if at == 'spec' else 'key'}", "Required", "is required: the name of a label of nodes")
    if given.value is None:
        report(f"{at}.value", "Required", "is required: the label's value")
    value = "" if given.value is None else label_text(given.value)
    if key and not amounts:
        _quantities(Need(label=key, value=value), at, found)
    return v2_bodies.Amount(key=key, value=value)


def _quantities(need: Need, at: str, found: list[Violation]) -> None:
    def report(path: str, code: str, message: str) -> None:
        path = path.replace(f"{at}.label", f"{at}.key").replace(f"{at}.resource", f"{at}.name")
        found.append(Violation(path=path, code=code, message=message))

    validation_rules.need_is_right(need, at, report)


def _number(value: float | str | None) -> float | str | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16 else value


# --- rules of single fields ------------------------------------------------------------------------------------------


def _meta(meta: v2_bodies.Meta, found: list[Violation]) -> None:
    if not is_name(meta.name):
        message = NAME_IS if meta.name else "is required"
        found.append(Violation(path="metadata.name", code="InvalidName", message=message))
    for field, text, most in (
        ("description", meta.description, v2_bodies.MAX_DESCRIPTION),
        ("userData1", meta.user_data1, v2_bodies.MAX_USER_DATA),
        ("userData2", meta.user_data2, v2_bodies.MAX_USER_DATA),
    ):
        if len(text) > most:
            message = f"has {len(text)} characters; at most {most} are taken"
            found.append(Violation(path=f"metadata.{field}", code="TooLong", message=message))


def label_of(text: str) -> tuple[str, str]:
    """`region=eu` has a value, `east` has none."""
    key, _, value = text.partition("=")
    return key, value


def _label(text: str, found: list[Violation]) -> None:
    key, value = label_of(text)
    if not _LABEL.fullmatch(key) or not _VALUE.fullmatch(value):
        message = f"{text!r} is not a label: a name, or NAME=VALUE" if text else "is required"
        found.append(Violation(path="clusterLabel", code="InvalidLabel", message=message))


def _more(body: msgspec.Struct, found: list[Violation]) -> None:
    if isinstance(body, v2_bodies.OfApp):
        _name(body.spec.app, "spec.app", found)
    elif isinstance(body, v2_bodies.AppIntent):
        _name(body.spec.app, "spec.app", found)
        if not body.spec.intent.all_of and not body.spec.intent.any_of:
            found.append(Violation(path="spec.intent", code="Required", message="allOf or anyOf is needed"))
        _terms(body.spec.intent.all_of, "spec.intent.allOf", found)
        _terms(body.spec.intent.any_of, "spec.intent.anyOf", found)
    elif isinstance(body, v2_bodies.Consumer):
        for field, text in (("apiVersion", body.spec.api_version), ("kind", body.spec.kind), ("name", body.spec.name)):
            if not text:
                message = "is required: the object is found by apiVersion, kind and name"
                found.append(Violation(path=f"spec.{field}", code="Required", message=message))
        if body.spec.replicas is not None and not 0 <= body.spec.replicas <= validation_rules.MAX_PODS:
            message = f"must be 0 to {validation_rules.MAX_PODS}: pods in each cluster"
            found.append(Violation(path="spec.replicas", code="OutOfRange", message=message))
    elif isinstance(body, v2_bodies.Group):
        for i, one in enumerate(body.spec.override_values):
            _name(one.app, f"spec.overrideValues[{i}].app", found)
    elif isinstance(body, v2_bodies.ClusterReference):
        _name(body.spec.cluster_provider, "spec.clusterProvider", found)
        _name(body.spec.cluster, "spec.cluster", found)


def _name(text: str, path: str, found: list[Violation]) -> None:
    if not is_name(text) and all(v.path != path for v in found):
        found.append(Violation(path=path, code="InvalidName", message=NAME_IS if text else "is required"))


def _terms(terms: list[v2_bodies.ClusterTerm], path: str, found: list[Violation]) -> None:
    for i, term in enumerate(terms):
        at = f"{path}[{i}]"
        nested = bool(term.all_of or term.any_of)
        if nested and (term.cluster or term.cluster_label or term.cluster_provider):
            message = "give either clusters by name or label, or allOf or anyOf, not both"
            found.append(Violation(path=at, code="Contradiction", message=message))
        elif not nested and not term.cluster_provider:
            found.append(Violation(path=f"{at}.clusterProvider", code="Required", message="is required"))
        elif not nested and bool(term.cluster) == bool(term.cluster_label):
            message = "give either cluster or clusterLabel"
            found.append(Violation(path=at, code="Contradiction", message=message))
        if term.cluster_provider:
            _name(term.cluster_provider, f"{at}.clusterProvider", found)
        if term.cluster:
            _name(term.cluster, f"{at}.cluster", found)
        if term.cluster_label and not _LABEL.fullmatch(label_of(term.cluster_label)[0]):
            message = f"{term.cluster_label!r} is not a label"
            found.append(Violation(path=f"{at}.clusterLabel", code="InvalidLabel", message=message))
        _terms(term.all_of, f"{at}.allOf", found)
        _terms(term.any_of, f"{at}.anyOf", found)
