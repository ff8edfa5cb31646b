"""Reads Machines from plain data and lists every violation, in one way for REST, the command line, NATS and the webhook."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from moorage.model.machines import Allow, Dependence, Gpu, Machine, MachineType, PoolNode, TypeSpec
from moorage.model.problems import Violation
from moorage.model.reasons import Warn
from moorage.parsing import canonical_quantity, parse_nanos

from .names import MACHINE_GROUP, MAX_OBJECT_NAME, RESERVED, object_name, pool_name
from .sizes import exact, in_order, own_amounts, share
from .windows import read_windows, window_violations

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL, re.ASCII)
_SUBDOMAIN = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_TYPE_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_EXTENDED = re.compile(
    r"(?=.{1,253}/)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*/"
    r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,54}[A-Za-z0-9])?",
    re.ASCII,
)
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DNS_LABEL_IS = "must be a DNS label: at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
_WHICH = ("family", "product", "machine")
_MAX_ENTRIES = 5000
#: Characters of the name of an object in Kubernetes.
_MAX_NAME = 253
_MAX_NUMBER = 1 << 31
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a whole number", bool: "true or false"}


class Surroundings(NamedTuple):
    """The objects against which a Machine is checked: the Nodes that exist (None: unknown), all Machines by name, and itself as it was
    before. `stored`: it was accepted once. Rules that came since then do not refuse it: its slots would go, with guests in them."""

    nodes: Collection[str] | None = None
    machines: Mapping[str, Machine] = {}
    before: Machine | None = None
    stored: bool = False


class Read(NamedTuple):
    """`machine` is None where there are violations."""

    machine: Machine | None
    violations: list[Violation]
    warnings: list[Warn]


def read(document: Mapping[str, Any], around: Surroundings | None = None) -> Read:
    """Reads a Machine document. Without `around`, only what the document itself says is checked."""
    reader = _Reader(stored=around is not None and around.stored)
    machine = reader.machine(document)
    if around is not None:
        reader.check_surroundings(machine, around)
    violations = _first_of_each_place(reader.violations)
    return Read(None if violations else machine, violations, reader.warnings)


class _Reader:
    def __init__(self, *, stored: bool) -> None:
        self._stored = stored
        self.violations: list[Violation] = []
        self.warnings: list[Warn] = []

    def error(self, path: str, code: str, message: str) -> None:
        self.violations.append(Violation(path=path, code=code, message=message))

    def error_if_new(self, path: str, code: str, message: str) -> None:
        """Records what breaks a rule that earlier releases did not have."""
        if not self._stored:
            self.error(path, code, message)

    # --- values

    def value(self, parent: Mapping[str, Any], key: str, kind: type, path: str, *, required: bool = False) -> Any:
        """Returns the value of a field; None if it is missing or of another type."""
        found = parent.get(key)
        at = f"{path}.{key}" if path else key
        if found is None:
            if required:
                self.error(at, "Required", "is required")
            return None
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            self.error(at, "WrongType", f"must be {_KINDS[kind]}, not {_kind_of(found)}")
            return None
        return found

    def entries(self, parent: Mapping[str, Any], key: str, path: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns the objects of a list, each with its path."""
        found = self.value(parent, key, list, path, required=True)
        at = f"{path}.{key}"
        if found is None:
            return []
        if not found:
            self.error(at, "Required", "has no entries; at least one is required")
        if len(found) > _MAX_ENTRIES:
            self.error(at, "TooMany", f"has {len(found)} entries; at most {_MAX_ENTRIES} are allowed")
            return []
        objects = []
        for i, entry in enumerate(found):
            if isinstance(entry, Mapping):
                objects.append((f"{at}[{i}]", entry))
            else:
                self.error(f"{at}[{i}]", "WrongType", f"must be an object, not {_kind_of(entry)}")
        return objects

    def known(self, given: Mapping[str, Any], fields: Sequence[str], path: str) -> None:
        for key in given:
            if key not in fields:
                at = f"{path}.{key}" if path else str(key)
                self.error(at, "UnknownField", f"unknown field; known are {', '.join(fields)}")

    def strings(self, parent: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
        found = self.value(parent, key, list, path) or []
        for i, entry in enumerate(found):
            if not isinstance(entry, str) or not entry:
                self.error(f"{path}.{key}[{i}]", "WrongType", "must be text that is not empty")
        return tuple(entry for entry in found if isinstance(entry, str))

    def number(
        self, parent: Mapping[str, Any], key: str, path: str, least: int, *, required: bool = False
    ) -> int | None:
        found = parent.get(key)
        if isinstance(found, float) and found.is_integer():
            parent = {**parent, key: int(found)}
        number: int | None = self.value(parent, key, int, path, required=required)
        if number is not None and not least <= number < _MAX_NUMBER:
            self.error(f"{path}.{key}", "OutOfRange", f"is {number}; it must be at least {least}")
            return None
        return number

    def quantity(self, parent: Mapping[str, Any], key: str, path: str, *, required: bool) -> str:
        found = parent.get(key)
        at = f"{path}.{key}"
        if found is None:
            if required:
                self.error(at, "Required", "is required")
            return ""
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            self.error(at, "WrongType", f"must be a quantity like 500m or 4Gi, not {_kind_of(found)}")
            return ""
        text = found if isinstance(found, str) else repr(found)
        try:
            nanos = parse_nanos(text)
        except ValueError as wrong:
            self.error(at, "InvalidQuantity", str(wrong))
            return ""
        if nanos <= 0:
            self.error(at, "OutOfRange", f"is {text}; it must be more than 0")
            return ""
        return canonical_quantity(text)

    def ratio(self, parent: Mapping[str, Any], key: str, path: str, *, required: bool = False) -> float | None:
        """Reads a number above 0 and at most 1; "50%" is 0.5."""
        found = parent.get(key)
        at = f"{path}.{key}"
        if found is None:
            if required:
                self.error(at, "Required", "is required")
            return None
        number = _ratio(found)
        if number is None:
            self.error(at, "WrongType", 'must be a number like 0.5 or a percentage like "50%"')
            return None
        if not 0 < number <= 1:
            self.error(at, "OutOfRange", f"is {found}; it must be more than 0 and at most 1 (100%)")
            return None
        return number

    # --- the document

    def machine(self, document: Mapping[str, Any]) -> Machine:
        metadata = self.value(document, "metadata", dict, "", required=True) or {}
        name = self.value(metadata, "name", str, "metadata", required=True) or ""
        if name and _SUBDOMAIN.fullmatch(name) is None:
            self.error("metadata.name", "InvalidName", "must be a DNS name of a-z, 0-9, '-' and '.'")
        elif len(pool_name(name)) > _MAX_NAME:
            most = _MAX_NAME - len(pool_name(""))
            self.error_if_new(
                "metadata.name", "TooLong", f"has {len(name)} characters; at most {most} leave room for its pool"
            )
        group = self.group(metadata)
        spec = self.value(document, "spec", dict, "", required=True) or {}
        self.known(spec, ("nodePool", "machineTypes", "allow", "cluster"), "spec")
        types = self.types(spec, group)
        cluster = self.value(spec, "cluster", str, "spec") or ""
        pool = self.pool(spec, {t.name for t in types}, cluster)
        self.check_dependence(types)
        self.warn_unused(types, pool)
        return Machine(
            name=name, group=group, node_pool=tuple(pool), types=tuple(types), allow=self.allow(spec), cluster=cluster
        )

    def group(self, metadata: Mapping[str, Any]) -> str:
        labels = self.value(metadata, "labels", dict, "metadata") or {}
        group = labels.get(MACHINE_GROUP)
        path = f"metadata.labels[{MACHINE_GROUP}]"
        if not group:
            self.error(path, "Required", "is required: the name of the group")
            return ""
        if not isinstance(group, str) or _DNS_LABEL.fullmatch(group) is None:
            self.error(path, "InvalidName", _DNS_LABEL_IS)
            return ""
        return group

    def types(self, spec: Mapping[str, Any], group: str) -> list[MachineType]:
        types: list[MachineType] = []
        for path, entry in self.entries(spec, "machineTypes", "spec"):
            self.known(entry, ("name", "spec", "available", "offlineSlots", "windows"), path)
            name = self.value(entry, "name", str, path, required=True) or ""
            self.check_type_name(name, group, path)
            if name and name in {t.name for t in types}:
                self.error(f"{path}.name", "Duplicate", f"there is a second machine type {name!r}")
                continue
            raw = self.value(entry, "spec", dict, path, required=True)
            size = self.type_spec(raw or {}, f"{path}.spec") if raw is not None else TypeSpec()
            depends = isinstance(raw, Mapping) and raw.get("dependence") is not None
            available = self.number(entry, "available", path, 0, required=not depends)
            offline = self.number(entry, "offlineSlots", path, 0) or 0
            if available is not None and offline > available:
                self.error(f"{path}.offlineSlots", "Contradiction", f"is {offline}, but available is {available}")
            if depends and offline and available is None:
                text = "only so many are set aside of a type with available; without, the slots in which it lives are"
                self.error_if_new(f"{path}.offlineSlots", "Contradiction", text)
            windows = read_windows(self, entry, path)
            if depends and windows:
                text = "slots of another type are opened when pods come; a window holds slots of the type in which it lives"
                self.error_if_new(f"{path}.windows", "Contradiction", text)
            window_violations(self, windows, available, offline, f"{path}.windows")
            types.append(
                MachineType(
                    name=name,
                    spec=size,
                    available=-1 if available is None else available,
                    offline_slots=offline,
                    windows=tuple(windows),
                )
            )
        return types

    def check_type_name(self, name: str, group: str, path: str) -> None:
        if not name:
            return
        if _TYPE_NAME.fullmatch(name) is None:
            self.error(f"{path}.name", "InvalidName", f"{name!r}: {_DNS_LABEL_IS}, and a letter first")
        elif name in RESERVED:
            self.error(f"{path}.name", "InvalidName", f"{name!r} is the name of a label of machines; choose another")
        elif group and len(object_name(group, name)) > MAX_OBJECT_NAME:
            self.error(
                f"{path}.name",
                "TooLong",
                f"{object_name(group, name)!r} has {len(object_name(group, name))} characters; TYPE-GROUP may have {MAX_OBJECT_NAME}",
            )

    def type_spec(self, raw: Mapping[str, Any], path: str) -> TypeSpec:
        self.known(raw, ("cpu", "memory", "gpu", "hostLimit", "dependence"), path)
        dependence = self.dependence(raw, path)
        own = dependence is None and raw.get("dependence") is None
        return TypeSpec(
            cpu=self.quantity(raw, "cpu", path, required=own),
            memory=self.quantity(raw, "memory", path, required=own),
            gpu=self.gpu(raw, path),
            host_limit=self.ratio(raw, "hostLimit", path) or 1.0,
            dependence=dependence,
        )

    def gpu(self, raw: Mapping[str, Any], path: str) -> Gpu | None:
        gpu = self.value(raw, "gpu", dict, path)
        if gpu is None:
            return None
        path = f"{path}.gpu"
        self.known(gpu, ("type", "num", *_WHICH), path)
        kind = self.value(gpu, "type", str, path, required=True) or ""
        if kind and (_EXTENDED.fullmatch(kind) is None or "kubernetes.io/" in kind or kind.startswith("requests.")):
            self.error(f"{path}.type", "InvalidName", f"{kind!r} is not an extended resource like nvidia.com/gpu")
        if isinstance(text := gpu.get("num"), str) and re.fullmatch("[0-9]{1,9}", text, re.ASCII):
            gpu = {**gpu, "num": int(text)}  # so it is stored by another controller
        num = self.number(gpu, "num", path, 1, required=True) or 0
        which = {key: self.value(gpu, key, str, path) or "" for key in _WHICH}
        for key, value in which.items():
            if value and _LABEL_VALUE.fullmatch(value) is None:
                self.error(f"{path}.{key}", "InvalidLabel", f"{value!r} is not the value of a label")
        given = [key for key in _WHICH if gpu.get(key)]
        if len(given) != 1:
            has = f"has {' and '.join(given)}" if given else "has none"
            self.error(
                path, "Contradiction" if given else "Required", f"needs exactly one of {', '.join(_WHICH)}; it {has}"
            )
        return Gpu(type=kind, num=num, **which)

    def dependence(self, raw: Mapping[str, Any], path: str) -> Dependence | None:
        found = self.value(raw, "dependence", dict, path)
        if found is None:
            return None
        path = f"{path}.dependence"
        self.known(found, ("machineType", "availableRatio"), path)
        parent = self.value(found, "machineType", str, path, required=True)
        ratio = self.ratio(found, "availableRatio", path, required=True)
        return Dependence(machine_type=parent, available_ratio=ratio) if parent and ratio else None

    def pool(self, spec: Mapping[str, Any], types: Collection[str], cluster: str) -> list[PoolNode]:
        pool: list[PoolNode] = []
        seen: set[tuple[str, str]] = set()
        for path, entry in self.entries(spec, "nodePool", "spec"):
            self.known(entry, ("name", "mode", "taint", "machineType", "cluster"), path)
            name = self.value(entry, "name", str, path, required=True) or ""
            where = self.value(entry, "cluster", str, path) or cluster
            if name and _SUBDOMAIN.fullmatch(name) is None:
                self.error(f"{path}.name", "InvalidName", f"{name!r} is not the name of a Node")
            if name and (name, where) in seen:
                self.error(f"{path}.name", "Duplicate", f"there is a second entry for Node {name!r}")
            seen.add((name, where))
            mode = self.value(entry, "mode", str, path, required=True)
            if mode is not None and mode not in ("ready", "maintenance"):
                self.error(f"{path}.mode", "BadValue", f"is {mode!r}; it must be ready or maintenance")
            names: list[str] = []
            for at, named in self.entries(entry, "machineType", path):
                self.known(named, ("name",), at)
                one = self.value(named, "name", str, at, required=True) or ""
                if one and one not in types:
                    known = ", ".join(sorted(types)) or "none"
                    self.error(
                        f"{at}.name", "UnknownType", f"there is no machine type {one!r}; spec.machineTypes has {known}"
                    )
                elif one in names:
                    self.error(f"{at}.name", "Duplicate", f"there is a second entry {one!r}")
                names.append(one)
            pool.append(
                PoolNode(
                    name=name,
                    mode="maintenance" if mode == "maintenance" else "ready",
                    taint=bool(self.value(entry, "taint", bool, path)),
                    machine_types=tuple(names),
                    cluster=where,
                )
            )
        return pool

    def allow(self, spec: Mapping[str, Any]) -> Allow:
        found = self.value(spec, "allow", dict, "spec")
        if found is None:
            return Allow()
        self.known(found, ("projects", "namespaces"), "spec.allow")
        return Allow(
            projects=self.strings(found, "projects", "spec.allow"),
            namespaces=self.strings(found, "namespaces", "spec.allow"),
        )

    # --- rules across fields

    def check_dependence(self, types: Sequence[MachineType]) -> None:
        by_name = {t.name: t for t in types}
        sound = {t.name for t in in_order(types)}
        amounts: dict[str, dict[str, int]] = {}
        for i, machine_type in enumerate(types):
            dependence = machine_type.spec.dependence
            if dependence is None:
                continue
            path = f"spec.machineTypes[{i}].spec.dependence.machineType"
            if dependence.machine_type not in by_name:
                self.error(path, "UnknownType", f"there is no machine type {dependence.machine_type!r}")
            elif machine_type.name not in sound and not self._above_is_missing(machine_type, by_name):
                self.error(path, "Contradiction", f"{machine_type.name!r} depends on itself")
        for machine_type in in_order(types):
            dependence = machine_type.spec.dependence
            own = own_amounts(machine_type)
            if dependence is not None:
                i = types.index(machine_type)
                own = self.child_amounts(machine_type, own, amounts[dependence.machine_type], i)
            amounts[machine_type.name] = own

    @staticmethod
    def _above_is_missing(machine_type: MachineType, by_name: Mapping[str, MachineType]) -> bool:
        seen: set[str] = set()
        current: MachineType | None = machine_type
        while current is not None and current.spec.dependence is not None and current.name not in seen:
            seen.add(current.name)
            current = by_name.get(current.spec.dependence.machine_type)
        return current is None

    def child_amounts(
        self, machine_type: MachineType, own: dict[str, int], parent: Mapping[str, int], index: int
    ) -> dict[str, int]:
        assert machine_type.spec.dependence is not None
        ratio = exact(machine_type.spec.dependence.available_ratio)
        path = f"spec.machineTypes[{index}].spec"
        found: dict[str, int] = {}
        for name, amount in parent.items():
            most = amount * ratio
            field = name if name in ("cpu", "memory") else "gpu"
            if name not in own:
                if field == "gpu" and most.denominator != 1:
                    self.error(f"{path}.gpu", "Contradiction", f"{name} comes out as {float(most):g}; it must be whole")
                elif not share(amount, ratio):
                    self.error(f"{path}.{field}", "OutOfRange", f"{name} comes out as 0")
                found[name] = share(amount, ratio)
            elif own[name] > most:
                at = f"{path}.gpu.num" if field == "gpu" else f"{path}.{field}"
                self.error(
                    at,
                    "OutOfRange",
                    f"is more than {float(ratio):g} of that of {machine_type.spec.dependence.machine_type}",
                )
        for name in own:
            if name not in parent:
                field = name if name in ("cpu", "memory") else "gpu"
                self.error(
                    f"{path}.{field}", "Contradiction", f"{machine_type.spec.dependence.machine_type} has no {name}"
                )
        return found | own

    def warn_unused(self, types: Sequence[MachineType], pool: Sequence[PoolNode]) -> None:
        used = {name for node in pool for name in node.machine_types}
        for machine_type in types:
            if machine_type.name not in used and machine_type.spec.dependence is None:
                text = f"machine type {machine_type.name!r} is in no entry of nodePool: it reserves nothing"
                self.warnings.append(Warn(code="TypeUnused", message=text))

    # --- rules about others

    def check_surroundings(self, machine: Machine, around: Surroundings) -> None:
        others = [other for name, other in around.machines.items() if name != machine.name]
        label = f"metadata.labels[{MACHINE_GROUP}]"
        if around.before is not None and machine.group and machine.group != around.before.group:
            self.error(label, "Immutable", f"is {around.before.group!r} and cannot be changed; make another Machine")
        for other in others:
            if other.group == machine.group and machine.group:
                self.error(label, "GroupTaken", f"Machine {other.name!r} has the group {machine.group!r}")
        before = {(n.name, n.cluster) for n in around.before.node_pool} if around.before is not None else set()
        taken = {(n.name, n.cluster): other for other in others for n in other.node_pool}
        for i, node in enumerate(machine.node_pool):
            key, path = (node.name, node.cluster), f"spec.nodePool[{i}].name"
            if around.nodes is not None and key not in before and node.name and node.name not in around.nodes:
                self.error(path, "UnknownNode", f"there is no Node {node.name!r}")
            if (other_machine := taken.get(key)) is not None:
                self.error(path, "NodeTaken", f"Node {node.name!r} is in the group {other_machine.group!r}")
        pairs = {object_name(o.group, t.name): (o.group, t.name) for o in others for t in o.types}
        for i, machine_type in enumerate(machine.types):
            pair = pairs.get(object_name(machine.group, machine_type.name))
            if pair is not None and pair != (machine.group, machine_type.name):
                text = f"{object_name(machine.group, machine_type.name)!r} is the name of type {pair[1]!r} of group {pair[0]!r}"
                self.error(f"spec.machineTypes[{i}].name", "NameTaken", text)


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return next((text for kind, text in _KINDS.items() if type(value) is kind), type(value).__name__)


def _ratio(found: Any) -> float | None:
    if isinstance(found, bool):
        return None
    if isinstance(found, str):
        text = found.strip()
        percent = text.endswith("%")
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            return None
        number = number / 100 if percent else number
    elif isinstance(found, int | float):
        number = float(found)
    else:
        return None
    return number if math.isfinite(number) else None


def _first_of_each_place(violations: Sequence[Violation]) -> list[Violation]:
    """Keeps one violation of each code for each place."""
    return list({(v.path, v.code): v for v in reversed(violations)}.values())[::-1]
