"""Compiles expressions that select devices, and evaluates each once for all devices that agree in what it names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moorage.collections import LruDict

from .analysis import ATTRIBUTES, CAPACITY, DRIVER, MULTIPLE, Analysis, analyze
from .devices import CelDevice
from .environment import LENIENT, environment
from .syntax_tree import renamed

#: The longest expression, in bytes, and the most work that one may be: what the API server of Kubernetes accepts.
MAX_LENGTH, MAX_COST = 10 * 1024, 1_000_000
_KEPT = 4096
_NESTED = 200


class CelError(ValueError):
    """An expression that does not compile, or would be too much work."""


class CelTooCostly(CelError):
    """An expression that would be too much work. Kubernetes creates none, and evaluating one is an error."""


class CelUnavailable(RuntimeError):
    """The CEL runtime is not installed."""


class Selector:
    """A compiled expression. Use `compile_selector`."""

    def __init__(self, expression: str, program: Any, analysis: Analysis) -> None:
        self.expression, self.analysis = expression, analysis
        self._program = program
        self._answers: LruDict[object, bool | None] = LruDict(_KEPT)
        attributes = {n for n in analysis.names if n.root == ATTRIBUTES}
        capacity = {n for n in analysis.names if n.root == CAPACITY}
        self._reads_driver = DRIVER in analysis.variables
        self._reads_multiple = MULTIPLE in analysis.variables
        self._projections = (_Projection(attributes), _Projection(capacity))
        self.evaluated = 0

    def matches(self, device: CelDevice) -> bool | None:
        """Returns whether the device is selected; None if the expression has an error on it, for example for an attribute that
        is missing."""
        attributes = self._projections[0].of(device.attributes)
        capacity = self._projections[1].of(device.capacity)
        key = (
            device.driver if self._reads_driver else None,
            device.allow_multiple_allocations if self._reads_multiple else None,
            _frozen(attributes),
            _frozen(capacity),
        )
        if key in self._answers:
            return self._answers.use(key)
        found = self._answers[key] = self._evaluate(device, attributes, capacity)
        return found

    def _evaluate(self, device: CelDevice, attributes: dict[str, Any], capacity: dict[str, Any]) -> bool | None:
        self.evaluated += 1
        missing: dict[str, dict[str, Any]] = {name: {} for name in self.analysis.domains}
        if self._reads_driver:
            missing[device.driver] = {}  # device.attributes[device.driver]
        data = {
            DRIVER: device.driver,
            MULTIPLE: device.allow_multiple_allocations,
            ATTRIBUTES: attributes,
            CAPACITY: capacity,
            LENIENT[ATTRIBUTES]: missing | attributes,
            LENIENT[CAPACITY]: missing | capacity,
        }
        try:
            result = self._program.eval(data=data)
            if result.type().name() != "BOOL":
                return None
            return bool(result.value())
        except (RuntimeError, MemoryError):  # what is none of CEL's own errors, like a list that cannot be sorted
            return None


class _Projection:
    """Leaves of attributes or capacities what an expression names."""

    def __init__(self, names: Iterable[Any]) -> None:
        self._by_domain: dict[str, set[str]] = {}
        for name in names:
            self._by_domain.setdefault(name.domain, set()).add(name.name)
        self._all = "*" in self._by_domain

    def of(self, given: Any) -> dict[str, dict[str, Any]]:
        if self._all:
            return {domain: dict(values) for domain, values in given.items()}
        found: dict[str, dict[str, Any]] = {}
        for domain, names in self._by_domain.items():
            values = given.get(domain)
            if values is not None:
                found[domain] = dict(values) if "*" in names else {n: values[n] for n in names if n in values}
        return found


def _frozen(value: Any) -> object:
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return tuple(_frozen(inner) for inner in value)
    return type(value).__name__, value


def compile_selector(expression: str) -> Selector:
    """Compiles an expression. Raises CelError if it makes no sense, and CelUnavailable without the runtime."""
    if len(expression.encode()) > MAX_LENGTH:
        raise CelError(f"it is longer than {MAX_LENGTH} bytes")
    if _depth(expression) > _NESTED:
        raise CelError(f"it is nested deeper than {_NESTED}")
    try:
        found = environment()
    except ImportError as error:
        raise CelUnavailable(
            "CEL expressions need the package cel-expr-python, which has wheels for CPython 3.11 and later on x86-64 and arm64"
        ) from error
    try:
        checked = found.checking.compile(expression)
    except RuntimeError as error:
        raise CelError(_said(str(error))) from None
    kind = checked.return_type().name()
    if kind not in ("BOOL", "DYN"):
        raise CelError(f"it gives {kind.lower()}, not a bool")
    serialized = checked.serialize()
    try:
        analysis = analyze(serialized)
    except RecursionError:
        raise CelError("it is nested too deeply") from None
    if analysis.cost > MAX_COST:
        raise CelTooCostly(f"it may take more than {MAX_COST:,} steps")
    names = {node: (name, LENIENT[name]) for node, name in analysis.lenient.items()}
    return Selector(expression, found.running.deserialize(renamed(serialized, names)), analysis)


def _depth(expression: str) -> int:
    deepest = depth = 0
    for character in expression:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _said(text: str) -> str:
    """Returns the first error that the compiler tells, without the lines that show where it is."""
    first = text.removeprefix("INVALID_ARGUMENT: ").partition("\n")[0]
    return first.removeprefix("ERROR: ").removeprefix("<input>:").removesuffix(" [INVALID_ARGUMENT]")


class SelectorCache:
    """Compiles each expression once. `get` returns None for those that do not compile, and for all without the runtime."""

    def __init__(self, most: int = 1024) -> None:
        self._known: LruDict[str, Selector | None] = LruDict(most)

    def get(self, expression: str) -> Selector | None:
        if expression in self._known:
            return self._known.use(expression)
        try:
            found: Selector | None = compile_selector(expression)
        except (CelError, CelUnavailable):
            found = None
        self._known[expression] = found
        return found
