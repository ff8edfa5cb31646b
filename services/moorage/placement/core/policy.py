"""Decides who may call an operation, by the rules of the interface or those of a file in the form of oslo.policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Check = Callable[["Caller", Mapping[str, str]], bool]

_SECURE = {
    "admin_api": "role:admin",
    "service_api": "role:service",
    "admin_or_service_api": "role:admin or role:service",
    "project_reader_api": "role:reader and project_id:%(project_id)s",
    "admin_or_project_reader_or_service_api": "role:admin or rule:project_reader_api or role:service",
    "placement:reshaper:reshape": "rule:service_api",
    "placement:usages": "rule:admin_or_project_reader_or_service_api",
}
_DEFAULT = "rule:admin_or_service_api"


class Caller(NamedTuple):
    user: str
    project: str
    roles: frozenset[str]
    system: bool = False  # acts for the whole cloud, not for a project; no rule allows that


class Policy:
    """Rules by name. `legacy` allows everything to the role admin besides."""

    def __init__(self, rules: Mapping[str, str] | None = None, legacy: bool = False) -> None:
        self._texts = {**_SECURE, **(rules or {})}
        self._legacy = legacy
        self._checks: dict[str, Check] = {}

    def check(self) -> None:
        """Raises ValueError for a rule that cannot be read."""
        for text in self._texts.values():
            self._compiled(text)

    def allows(self, rule: str, caller: Caller, target: Mapping[str, str]) -> bool:
        if not rule or (self._legacy and "admin" in caller.roles):
            return True
        check = self._checks.get(rule)
        if check is None:
            check = self._checks[rule] = self._compiled(self._texts.get(rule, _DEFAULT))
        return check(caller, target)

    def _compiled(self, text: str) -> Check:
        tokens = text.replace("(", " ( ").replace(")", " ) ").replace("% ( ", "%(").split()
        # A value such as %(project_id)s holds parentheses that are no grouping.
        tokens = _joined(tokens)
        check, rest = self._either(tokens)
        if rest:
            raise ValueError(f"unexpected {rest[0]!r} in the rule {text!r}")
        return check

    def _either(self, tokens: list[str]) -> tuple[Check, list[str]]:
        check, rest = self._both(tokens)
        while rest and rest[0].lower() == "or":
            other, rest = self._both(rest[1:])
            check = _or(check, other)
        return check, rest

    def _both(self, tokens: list[str]) -> tuple[Check, list[str]]:
        check, rest = self._one(tokens)
        while rest and rest[0].lower() == "and":
            other, rest = self._one(rest[1:])
            check = _and(check, other)
        return check, rest

    def _one(self, tokens: list[str]) -> tuple[Check, list[str]]:
        if not tokens:
            return (lambda caller, target: True), []
        first, rest = tokens[0], tokens[1:]
        if first.lower() == "not":
            inner, rest = self._one(rest)
            return (lambda caller, target: not inner(caller, target)), rest
        if first == "(":
            inner, rest = self._either(rest)
            if not rest or rest[0] != ")":
                raise ValueError("a rule lacks )")
            return inner, rest[1:]
        if first in ("@", "!"):
            return (lambda caller, target: first == "@"), rest
        kind, colon, value = first.partition(":")
        if not colon:
            raise ValueError(f"unknown check {first!r}")
        if kind == "rule":
            return (lambda caller, target: self.allows(value, caller, target)), rest
        if kind == "role":
            return (lambda caller, target: value.lower() in caller.roles), rest
        return _attribute(kind, value), rest


def _joined(tokens: list[str]) -> list[str]:
    found: list[str] = []
    for token in tokens:
        if found and "%(" in found[-1] and not found[-1].endswith(")s"):
            found[-1] += token
        else:
            found.append(token)
    return found


def _attribute(kind: str, value: str) -> Check:
    def check(caller: Caller, target: Mapping[str, str]) -> bool:
        has = {"project_id": caller.project, "user_id": caller.user}.get(kind)
        wanted = target.get(value[2:-2]) if value.startswith("%(") else value
        return has is not None and has == wanted

    return check


def _or(one: Check, other: Check) -> Check:
    return lambda caller, target: one(caller, target) or other(caller, target)


def _and(one: Check, other: Check) -> Check:
    return lambda caller, target: one(caller, target) and other(caller, target)
