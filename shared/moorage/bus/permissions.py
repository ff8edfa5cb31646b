"""Least privilege: what each kind of user may publish and subscribe to, made from the subject table."""

from __future__ import annotations

from typing import Any

from moorage.model.names import cluster_tokens

from .fanout import AT_MOST
from .subjects import BUCKETS, BUILTIN_CONTROLLERS, FOLLOWERS, KINDS, LOGS, TABLE

__all__ = ["KINDS", "for_agent", "for_user"]

#: Buckets that a kind may write, and those it may read (everyone reads through mirrors and direct gets).
WRITES: dict[str, tuple[str, ...]] = {
    "intents": ("moorage-groups", "moorage-revisions", "moorage-documents", "moorage-resources", "moorage-controllers"),
    "inventory": ("moorage-clusters", "moorage-leases"),
    "merger": ("moorage-leases",),
    "patcher": ("moorage-desired", "moorage-status", "moorage-leases"),
    "gateway": ("moorage-tokens",),
}
READS: dict[str, tuple[str, ...]] = {
    "intents": ("moorage-status",),
    "merger": ("moorage-groups", "moorage-controllers"),
    "patcher": ("moorage-groups", "moorage-revisions", "moorage-controllers", "moorage-clusters"),
    "gateway": BUCKETS,
}
STREAMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(FOLLOWERS, ("MOORAGE_LEDGER",)),
    "gateway": ("MOORAGE_LEDGER", "MOORAGE_EVENTS", "MOORAGE_REJECTED"),
    "intents": ("MOORAGE_EVENTS",),
    "inventory": ("MOORAGE_EVENTS",),
    "merger": ("MOORAGE_LEDGER", "MOORAGE_EVENTS"),
    "patcher": ("MOORAGE_LEDGER", "MOORAGE_EVENTS"),
    "controller": ("MOORAGE_LEDGER",),
}
OBJECT_WRITES: dict[str, tuple[str, ...]] = {
    "merger": ("moorage-snapshots",),
    "sim": ("moorage-sim",),
}
OBJECT_READS: dict[str, tuple[str, ...]] = {
    "intents": ("moorage-status",),
    **dict.fromkeys((*FOLLOWERS, "controller"), ("moorage-snapshots",)),
}


def _reading(stream: str) -> list[str]:
    api = "$JS.API"
    return [
        f"{api}.STREAM.INFO.{stream}",
        f"{api}.CONSUMER.CREATE.{stream}.>",
        f"{api}.CONSUMER.DELETE.{stream}.>",
        f"{api}.CONSUMER.INFO.{stream}.>",
        f"{api}.DIRECT.GET.{stream}",
        f"{api}.DIRECT.GET.{stream}.>",
        f"{api}.STREAM.MSG.GET.{stream}",
    ]


def _stores(kind: str) -> list[str]:
    allow = ["$JS.FC.>"]
    written = WRITES.get(kind, ())
    for bucket in dict.fromkeys((*written, *READS.get(kind, ()))):
        allow += _reading(f"KV_{bucket}")
    allow += [f"$KV.{bucket}.>" for bucket in written]
    for stream in STREAMS.get(kind, ()):
        allow += _reading(stream)
    objects = OBJECT_WRITES.get(kind, ())
    for bucket in dict.fromkeys((*objects, *OBJECT_READS.get(kind, ()))):
        # The client's own object store lists through a consumer without a name and asks for the stream's name first.
        unnamed = [f"$JS.API.CONSUMER.CREATE.OBJ_{bucket}", "$JS.API.STREAM.NAMES"]
        allow += [*_reading(f"OBJ_{bucket}"), *unnamed]
    for bucket in objects:
        allow += [f"$O.{bucket}.>", f"$JS.API.STREAM.PURGE.OBJ_{bucket}"]
    if kind == "merger":
        allow.append("$JS.API.STREAM.PURGE.MOORAGE_LEDGER")
    return allow


def _wide(pattern: str) -> str:
    return pattern.replace("<provider>.<cluster>", "*.*")


def for_user(kind: str) -> dict[str, Any]:
    """The permissions of one kind of worker, in the form of the server's configuration."""
    if kind not in KINDS:
        raise ValueError(f"no such kind of user: {kind}; there are {', '.join(KINDS)}")
    if kind == "admin":
        return {"publish": {"allow": [">"]}, "subscribe": {"allow": [">"]}}
    says: list[str] = []
    hears = [f"_INBOX.{kind}.>"]
    deny: list[str] = []
    for row in TABLE:
        pattern = _wide(row.pattern)
        own = kind in BUILTIN_CONTROLLERS and pattern.startswith("moorage.controllers.*.")
        if own:
            pattern = pattern.replace("*", kind, 1)
        if kind in row.says:
            says.append(pattern)
        if kind in row.hears and row.pattern != "moorage.ledger.commit":
            hears.append(pattern)
    if kind == "controller":
        # A controller of one's own never answers, starts or ends in a built-in's name.
        deny = [f"moorage.controllers.{name}.>" for name in BUILTIN_CONTROLLERS]
    permissions: dict[str, Any] = {
        "publish": {"allow": says + _stores(kind)},
        "subscribe": {"allow": hears},
        # The answers to questions that came together may come one by one.
        "allow_responses": {"max": AT_MOST, "expires": "2m"} if kind in (*BUILTIN_CONTROLLERS, "controller") else True,
    }
    if deny:
        permissions["publish"]["deny"] = deny
        permissions["subscribe"]["deny"] = deny
    return permissions


def for_agent(cluster: str) -> dict[str, Any]:
    """An agent speaks for its own cluster and no other, and has no rights on streams at all."""
    own = cluster_tokens(cluster)
    says, hears = [], [f"_INBOX.agent.{own}.>"]
    for row in TABLE:
        pattern = row.pattern.replace("<provider>.<cluster>", own)
        if "agent" in row.says:
            says.append(pattern)
        if "agent" in row.hears:
            hears.append(pattern)
    return {"publish": {"allow": says}, "subscribe": {"allow": hears}}


assert set(STREAMS["gateway"]) == set(LOGS)
