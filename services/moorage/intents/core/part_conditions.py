"""Reads the conditions of a topology: lists of `T`, `!T`, `in:A,B` and `!in:A,B`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from moorage.model.part_names import short_name

from .diagnostics import Diagnostics

_TRAIT = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_AGGREGATE = re.compile(r"[^\s,!]{1,255}")


class Conditions(NamedTuple):
    """`required`: of each entry, one name must be there; `forbidden`: none of these may."""

    required: tuple[tuple[str, ...], ...] = ()
    forbidden: tuple[str, ...] = ()

    def plus(self, other: Conditions) -> Conditions:
        return Conditions(
            tuple(dict.fromkeys(self.required + other.required)), tuple(dict.fromkeys(self.forbidden + other.forbidden))
        )


def traits(entries: Sequence[str]) -> Conditions:
    found = _conditions(entries)
    return Conditions(
        tuple(tuple(map(short_name, names)) for names in found.required), tuple(map(short_name, found.forbidden))
    )


def aggregates(entries: Sequence[str]) -> Conditions:
    return _conditions(entries)


def _conditions(entries: Sequence[str]) -> Conditions:
    found = Conditions()
    for entry in entries:
        is_forbidden, names = _read(entry)
        found = found.plus(Conditions((), names) if is_forbidden else Conditions((names,)))
    return found


def _read(entry: str) -> tuple[bool, tuple[str, ...]]:
    is_forbidden, text = entry.startswith("!"), entry.removeprefix("!")
    if text.startswith("in:"):
        return is_forbidden, tuple(dict.fromkeys(text.removeprefix("in:").split(",")))
    return is_forbidden, (text,)


def check_traits(entries: Sequence[str], path: str, diagnostics: Diagnostics) -> None:
    message = "is not a trait: write NAME, !NAME or in:NAME,NAME with names of A-Z, 0-9 and _"
    _check(entries, path, lambda name: _TRAIT.fullmatch(short_name(name)) is not None, message, diagnostics)
    for i, entry in enumerate(entries):
        if entry.startswith("!in:"):
            diagnostics.error(f"{path}[{i}]", "InvalidName", f"{entry!r}: forbid traits one by one, like !NAME")
    check_contradiction(traits(entries), path, diagnostics)


def check_aggregates(entries: Sequence[str], path: str, diagnostics: Diagnostics) -> None:
    message = "is not an aggregate: write NAME, !NAME, in:NAME,NAME or !in:NAME,NAME, at most 255 characters a name"
    _check(entries, path, lambda name: _AGGREGATE.fullmatch(name) is not None, message, diagnostics)
    check_contradiction(aggregates(entries), path, diagnostics)


def _check(
    entries: Sequence[str], path: str, is_name: Callable[[str], bool], message: str, diagnostics: Diagnostics
) -> None:
    for i, entry in enumerate(entries):
        if not all(map(is_name, _read(entry)[1])):
            diagnostics.error(f"{path}[{i}]", "InvalidName", f"{entry!r} {message}")


def check_contradiction(conditions: Conditions, path: str, diagnostics: Diagnostics) -> None:
    for names in contradictions(conditions):
        diagnostics.error(path, "Contradiction", f"requires and forbids {', '.join(names)}")


def contradictions(conditions: Conditions) -> list[tuple[str, ...]]:
    """Returns the required entries all of whose names are forbidden."""
    return [names for names in conditions.required if set(names) <= set(conditions.forbidden)]
