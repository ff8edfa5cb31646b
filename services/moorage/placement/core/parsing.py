"""Reads query parameters that list resources, traits and aggregates."""

from __future__ import annotations

from typing import NamedTuple

from moorage.parsing import NEED_MAX

from .errors import bad_request
from .schemas import is_uuid


class Traits(NamedTuple):
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()


class Aggregates(NamedTuple):
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()


def resources(text: str) -> dict[str, int]:
    form = "Badly formed resources parameter. Expected resources query string parameter in form: ?resources=VCPU:2,MEMORY_MB:1024."
    if not text.strip():
        raise bad_request(f"{form} Got: empty string.")
    found: dict[str, int] = {}
    for item in text.split(","):
        name, colon, number = item.partition(":")
        if not colon or ":" in number:
            raise bad_request(f"{form} Got: {item}.")
        try:
            amount = int(number)
        except ValueError:
            raise bad_request(f"Requested resource {name} expected positive integer amount. Got: {number}.") from None
        if amount < 1:
            raise bad_request(f"Requested resource {name} requires amount >= 1. Got: {amount}.")
        found[name] = min(amount, NEED_MAX)  # more than anything can have
    return found


def traits(values: list[str], version: int) -> Traits:
    """Reads one parameter of required traits, repeated from 1.39."""
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values if version >= 39 else values[-1:]:
        found = _traits(value, version)
        required += found.required
        forbidden |= found.forbidden
    return Traits(tuple(required), frozenset(forbidden))


def _traits(text: str, version: int) -> Traits:
    if text.startswith("in:"):
        return Traits((_any_trait(text, version),))
    names = [name.strip() for name in text.split(",")]
    forbidden = frozenset(name.lstrip("!") for name in names if name.startswith("!"))
    form = "HW_CPU_X86_VMX,!CUSTOM_MAGIC" if version >= 22 else "HW_CPU_X86_VMX,CUSTOM_MAGIC"
    expected = f"Invalid query string parameters: Expected 'required' parameter value of the form: {form}."
    if not all(names) or not all(forbidden):
        raise bad_request(f"{expected} Got an empty trait in: {text}")
    if forbidden and version < 22:
        raise bad_request(f"{expected} Got: {text}")
    return Traits(tuple(frozenset({name}) for name in names if not name.startswith("!")), forbidden)


def _any_trait(text: str, version: int) -> frozenset[str]:
    form = "in:HW_CPU_X86_VMX,CUSTOM_MAGIC"
    prefix = "Invalid query string parameters: "
    if version < 39:
        raise bad_request(f"{prefix}The format '{form}' only supported since microversion 1.39. Got: {text}")
    names = frozenset(name.strip() for name in text[3:].split(","))
    if not all(names):
        raise bad_request(
            f"{prefix}Expected 'required' parameter value of the form: {form}. Got an empty trait in: {text}"
        )
    if any(name.startswith("!") for name in names):
        raise bad_request(f"{prefix}The format '{form}' does not support forbidden traits. Got: {text}")
    return names


def root_traits(text: str, version: int) -> Traits:
    """Reads `root_required`; alternatives are known from 1.40."""
    return _traits(text, max(version, 22) if version < 40 else version)


def aggregates(values: list[str], version: int, parameter: str = "member_of") -> Aggregates:
    if version < 24 and len(values) > 1:
        raise bad_request(f"Multiple {parameter} parameters are not supported")
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        found = _aggregates(value)
        required += found.required
        if found.forbidden and version < 32:
            raise bad_request(f"Forbidden {parameter} parameters are not supported in the specified microversion")
        forbidden |= found.forbidden
    return Aggregates(tuple(required), frozenset(forbidden))


def _aggregates(text: str) -> Aggregates:
    if "," in text and not text.startswith(("in:", "!in:")):
        raise bad_request(
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword using the valid microversion. "
            f"Got: {text}"
        )
    negative = text.startswith("!")
    names = text.removeprefix("!")
    found = frozenset(names[3:].split(",")) if names.startswith("in:") else frozenset({names})
    for name in found:
        if not is_uuid(name):
            raise bad_request(
                f"Invalid query string parameters: Expected 'member_of' parameter to contain valid UUID(s). Got: {name}"
            )
    return Aggregates((), found) if negative else Aggregates((found,))


def in_tree(text: str) -> str:
    if not is_uuid(text.strip()):
        raise bad_request(
            f"Invalid query string parameters: Expected 'in_tree' parameter to be a format of uuid. Got: {text}"
        )
    return text.strip()
