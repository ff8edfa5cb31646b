"""Suggests what was meant where a name, a kind or a field does not exist. If the mesh cannot be asked, it suggests nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from .exit_codes import MISSING, USAGE, Failure

if TYPE_CHECKING:
    from pathlib import Path

    from .gateway_client import Client
    from .resource_types import ResourceType

#: Names that are compared, and the time that asking for them may take.
_NAMES = 1000
_TIMEOUT_SECONDS = 2.0


def closest(word: str, known: Iterable[str], *, ignore_case: bool = False) -> str:
    """Returns the known name that is most like a word, or "" if none is."""
    import difflib

    if ignore_case:
        names = {name.lower(): name for name in known}
        return names.get(closest(word.lower(), names), "")
    return next(iter(difflib.get_close_matches(word, list(known), 1)), "")


def did_you_mean(word: str, known: Iterable[str], *, ignore_case: bool = False) -> str:
    found = closest(word, known, ignore_case=ignore_case)
    return f"; did you mean {found!r}?" if found else ""


def for_failure(failure: Failure) -> str:
    """Returns the end of a message about something that does not exist: the name that is most like it."""
    client, path = getattr(failure, "client", None), getattr(failure, "path", "")
    if failure.code != MISSING or client is None or not path.startswith("/v1/"):
        return ""
    parts = [unquote(part) for part in path.split("?")[0].removeprefix("/v1/").split("/")]
    if parts[0] == "sim":
        parts = parts[1:]
    try:
        return _of_path(client, parts)
    except Failure:
        return ""


def for_group(client: Client, group: str) -> str:
    """Returns the end of a message about a group that does not exist."""
    try:
        return _group(client, group)
    except Failure:
        return ""


def _of_path(client: Client, parts: list[str]) -> str:
    kind, *rest = parts
    if kind == "groups" and len(rest) >= 4:
        return _group(client, "/".join(rest[:4]))
    if kind == "applications" and len(rest) == 2:
        return _group(client, f"{rest[0]}/{rest[1]}/v1/default")
    if kind in ("clusters", "nodes") and len(rest) >= 2:
        size = 2 if kind == "clusters" else 3
        fields = ("id",) if kind == "clusters" else ("cluster", "name")
        names = ["/".join(item[field] for field in fields) for item in _items(client, kind)]
        return did_you_mean("/".join(rest[:size]), names)
    if kind in ("controllers", "tokens") and rest:
        return did_you_mean(rest[0], [item["name"] for item in _items(client, kind)])
    if kind == "intents" and len(rest) == 3:
        items = [item for item in _items(client, kind) if item["kind"] == rest[0]]
        return did_you_mean(rest[2], [item["metadata"]["name"] for item in items])
    return ""


def _items(client: Client, kind: str) -> list[dict[str, Any]]:
    query = {"limit": str(_NAMES)} | ({"view": "name"} if kind == "clusters" else {})
    found: list[dict[str, Any]] = client.call("GET", f"/v1/{kind}", query=query, timeout=_TIMEOUT_SECONDS)["items"]
    return found


def _group(client: Client, group: str) -> str:
    """Compares short names: full names of groups are all alike."""
    project, name, *rest = group.split("/")
    groups = [tuple(item["group"].split("/", 1)) for item in _items(client, "groups")]
    here = {short_name(full): full for own, full in groups if own == project}
    wanted = short_name("/".join((name, *rest)))
    if found := closest(wanted, here):
        return f"; did you mean {found!r}?" if "/" not in found else f"; did you mean '{project}/{found}'?"
    elsewhere = sorted(own for own, full in groups if short_name(full) == wanted)
    return f"; did you mean -p {elsewhere[0]}?" if elsewhere else ""


def short_name(name: str) -> str:
    """Returns `shop` of `shop/v1/default`."""
    return name.removesuffix("/v1/default")


def resolve_for(verb: str, kind: str, name: str, state: Path | None) -> ResourceType:
    """Returns the resource type of `moorage VERB KIND NAME`. Who gives a name alone is told its kind."""
    from .resource_types import resolve

    try:
        return resolve(kind)
    except Failure as failure:
        suggestion = _with_its_kind(verb, f"{kind}/{name}" if name else kind, state)
        if not suggestion:
            raise
        raise Failure(f"{str(failure).partition(';')[0]}{suggestion}", USAGE) from None


def _with_its_kind(verb: str, word: str, state: Path | None) -> str:
    from .gateway_client import Client

    try:
        client = Client.find(state)
        applications = [item["metadata"]["name"] for item in _items(client, "applications")]
        named = [
            *(("application", name) for name in applications),
            *(("cluster", item["id"]) for item in _items(client, "clusters")),
            *(("controller", item["name"]) for item in _items(client, "controllers") if verb != "delete"),
        ]
        kinds = {name: kind for kind, name in reversed(named)}
        found = word if word in kinds else closest(word, kinds)
        return f"; did you mean `moorage {verb} {kinds[found]} {found}`?" if found else ""
    except Failure:
        return ""
