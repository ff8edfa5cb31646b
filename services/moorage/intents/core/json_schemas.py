"""JSON Schemas that controllers bring for intents of their own kinds: looked at when they are registered, and what is
written held against them. Neither may keep the store from its work: a pattern like `^(a+)+$`, or rules that name each
other often enough, can take ever longer over a line of text."""

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

from .violations import Report

#: Of this process's time, for one document or schema.
SECONDS = 0.25
MAX_ERRORS = 200
_SLOW = f"takes longer than {SECONDS:g} s"
#: Of these a schema asks for the very value that it is asked about itself.
_OF_THE_SAME = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")


class _TooLong(BaseException):
    """Not for anybody who handles errors on the way."""


def _rung(_number: int, _frame: object) -> None:
    raise _TooLong


@contextmanager
def _bounded() -> Iterator[None]:
    """By a timer of the process's own time, whose signal ends regular expressions, too: they look for signals as they go.
    It rings once, so that it cannot reach what comes after."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("only the main thread can be interrupted")
    signal.signal(signal.SIGVTALRM, _rung)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def wrong_with(schema: dict[str, Any]) -> str:
    """Why this is no JSON Schema that documents can be held against; empty if it is one."""
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
    except _TooLong:
        return f"to look at it {_SLOW}"


class _References:
    """All that a schema names must be in it, and nothing may name itself before it has looked into a value."""

    def __init__(self) -> None:
        self._done: set[int] = set()

    def wrong_in(self, resource: referencing.Resource[Any], resolver: Any) -> str:
        if wrong := self._follow(resource.contents, resolver, {}):
            return wrong
        for inner in resource.subresources():
            if wrong := self.wrong_in(inner, resolver.in_subresource(inner)):
                return wrong
        return ""

    def _follow(self, schema: Any, resolver: Any, way: dict[int, str]) -> str:
        """`way`: what asks for this, and through which name."""
        if not isinstance(schema, dict) or id(schema) in self._done:
            return ""
        if id(schema) in way:
            return f"{way[id(schema)] or next(filter(None, way.values()))} leads back to itself"
        way[id(schema)] = ""
        for name in ("$ref", "$dynamicRef"):
            if isinstance(ref := schema.get(name), str):
                try:
                    found = resolver.lookup(ref)
                except Unresolvable:
                    return f"{name} {ref[:200]!r} names nothing in it"
                way[id(schema)] = f"{name} {ref[:200]!r}"
                if wrong := self._follow(found.contents, found.resolver, way):
                    return wrong
        for name in _OF_THE_SAME:
            inside = schema.get(name, [])
            if name == "dependentSchemas" and isinstance(inside, dict):
                inside = list(inside.values())
            for inner in inside if isinstance(inside, list) else [inside]:
                if wrong := self._follow(inner, resolver, way):
                    return wrong
        del way[id(schema)]
        self._done.add(id(schema))
        return ""


def check(spec: dict[str, Any], schema: dict[str, Any], report: Report) -> None:
    # What ties an intent to its group and app is ours; a schema that forbids what it does not know need not name them.
    known = schema.get("properties", {})
    own = {k: v for k, v in spec.items() if k not in ("group", "app") or k in known}
    # An empty registry: a schema never makes this worker fetch something.
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    try:
        with _bounded():
            for i, error in enumerate(validator.iter_errors(own)):
                if i == MAX_ERRORS:
                    return
                report("spec" + error.json_path[1:], "SchemaViolation", error.message[:500])
    except _TooLong:
        report("spec", "SchemaTooSlow", f"to hold this against the controller's schema {_SLOW}; simplify either")
    except (Unresolvable, RecursionError, re.error) as error:
        report("spec", "SchemaBroken", f"the controller's schema cannot be used: {error}"[:500])
