"""Checks the JSON Schemas that controllers register for their own kinds of intents, and intents against them. Both are
limited in time, since a pattern like `^(a+)+$`, or rules that refer to each other often enough, could occupy the store
for ever."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
import referencing
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from .diagnostics import MAX_ERRORS, Diagnostics

#: Seconds of CPU time for one document or schema.
SECONDS = 0.25
_SLOW = f"takes longer than {SECONDS:g} s"
#: Keywords whose subschemas apply to the same value as the schema itself.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")


class _TimeExceeded(BaseException):
    """A BaseException, so that no handler of errors on the way catches it."""


def _on_timer(_number: int, _frame: object) -> None:
    raise _TimeExceeded


@contextmanager
def _bounded() -> Iterator[None]:
    """Limits CPU time by a timer whose signal also interrupts regular expressions, which check for signals as they run. The
    timer fires once, so it cannot interrupt what comes after."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("only the main thread can be interrupted")
    signal.signal(signal.SIGVTALRM, _on_timer)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def wrong_with(schema: dict[str, Any]) -> str:
    """Returns why documents cannot be checked against this schema; empty if they can."""
    try:
        with _bounded():
            jsonschema.Draft202012Validator.check_schema(schema)
            root = DRAFT202012.create_resource(schema)
            resolver = referencing.Registry().with_resource("", root).resolver_with_root(root)
            return _References().wrong_in(root, resolver)
    except jsonschema.SchemaError as error:
        return str(error.message)[:300]
    except RecursionError:
        return "it is nested too deeply"
    except _TimeExceeded:
        return f"checking it {_SLOW}"


class _References:
    """Checks that all references stay within the schema, and that none leads back to itself without descending into the
    value first."""

    def __init__(self) -> None:
        self._checked: set[int] = set()

    def wrong_in(self, resource: referencing.Resource[Any], resolver: Any) -> str:
        if wrong := self._follow(resource.contents, resolver, {}):
            return wrong
        for inner in resource.subresources():
            if wrong := self.wrong_in(inner, resolver.in_subresource(inner)):
                return wrong
        return ""

    def _follow(self, schema: Any, resolver: Any, path: dict[int, str]) -> str:
        """`path`: the schemas that lead here, each with the reference it was left by."""
        if not isinstance(schema, dict) or id(schema) in self._checked:
            return ""
        if id(schema) in path:
            return f"{path[id(schema)] or next(filter(None, path.values()))} leads back to itself"
        path[id(schema)] = ""
        for name in ("$ref", "$dynamicRef"):
            if isinstance(ref := schema.get(name), str):
                try:
                    found = resolver.lookup(ref)
                except Unresolvable:
                    return f"{name} {ref[:200]!r} points to nothing in the schema"
                path[id(schema)] = f"{name} {ref[:200]!r}"
                if wrong := self._follow(found.contents, found.resolver, path):
                    return wrong
        for name in _IN_PLACE:
            inside = schema.get(name, [])
            if name == "dependentSchemas" and isinstance(inside, dict):
                inside = list(inside.values())
            for inner in inside if isinstance(inside, list) else [inside]:
                if wrong := self._follow(inner, resolver, path):
                    return wrong
        del path[id(schema)]
        self._checked.add(id(schema))
        return ""


def check(spec: dict[str, Any], schema: dict[str, Any], diagnostics: Diagnostics) -> None:
    # Every intent names its group and app; a schema that forbids unknown fields need not list those two.
    known = schema.get("properties", {})
    checked = {k: v for k, v in spec.items() if k not in ("group", "app") or k in known}
    # With an empty registry a schema can never make this worker fetch anything.
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    try:
        with _bounded():
            for i, error in enumerate(validator.iter_errors(checked)):
                if i == MAX_ERRORS:
                    return
                diagnostics.error("spec" + error.json_path[1:], "SchemaViolation", error.message[:500])
    except _TimeExceeded:
        diagnostics.error(
            "spec", "SchemaTooSlow", f"checking this against the controller's schema {_SLOW}; simplify either"
        )
    except (Unresolvable, RecursionError, re.error) as error:
        diagnostics.error("spec", "SchemaBroken", f"the controller's schema cannot be used: {error}"[:500])
