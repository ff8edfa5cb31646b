"""The resource types of `get` and `describe`: names and short names as in kubectl, REST paths and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .exit_codes import USAGE, Failure
from .gateway_client import group_path, path
from .names import cluster_parts, full_name
from .output import Column, Row, amounts, clusters_of, field, yes_no


@dataclass(frozen=True)
class ResourceType:
    name: str
    aliases: tuple[str, ...]
    columns: tuple[Column, ...]
    item_path: Callable[[str, str], str]  # name, project → REST path
    qualified_name: Callable[[Row], str]
    subject: str  # events that may change it
    intent_kind: str = ""


def _meta(name: str) -> Callable[[Row], object]:
    return lambda row: row["metadata"].get(name, "default" if name == "project" else None)


def _revision(row: Row) -> str:
    """Formats the running revision, with a newer pending one in parentheses."""
    newer = f" ({row['pendingRevision']} {row['pendingPhase']})" if row.get("pendingRevision") else ""
    return f"{row.get('revision')}{newer}"


def _node_path(name: str, project: str) -> str:
    parts = name.split("/")
    if len(parts) != 3:
        raise Failure(f"{name!r} is not a node name; use PROVIDER/CLUSTER/NODE", USAGE)
    return path("nodes", *parts)


def _intent_path(name: str, project: str) -> str:
    kind, slash, rest = name.partition("/")
    if not slash:
        raise Failure(f"{name!r} is not an intent name; use KIND/NAME", USAGE)
    return path("intents", kind, project or "default", rest)


def _pairs(row: Row) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted((row.get("labels") or {}).items()))


KINDS: tuple[ResourceType, ...] = (
    ResourceType(
        "applications",
        ("application", "app", "apps"),
        (
            Column("PROJECT", _meta("project")),
            Column("NAME", _meta("name")),
            Column("APPS", lambda r: ",".join(a["name"] for a in r["spec"].get("apps", []))),
            Column("PHASE", lambda r: r["status"]["phase"]),
            Column("REVISION", lambda r: _revision(r["status"])),
            Column("CLUSTERS", lambda r: clusters_of(r["status"])),
            Column("GROUP", lambda r: r["status"]["group"], wide=True),
        ),
        lambda name, project: path("applications", *_application(name, project)),
        lambda r: f"application/{r['metadata']['name']}",
        "moorage.events.>",
    ),
    ResourceType(
        "groups",
        ("group", "grp", "deploymentintentgroups", "deploymentintentgroup", "dig", "digs"),
        (
            Column("GROUP", field("group")),
            Column("REVISION", _revision),
            Column("STATE", field("state")),
            Column("PHASE", field("phase")),
            Column("CLUSTERS", clusters_of),
            Column("SILENT", lambda r: ",".join(r.get("silent", [])), wide=True),
            Column("APPS", lambda r: ",".join(r.get("apps", {})), wide=True),
            Column("CREATED", field("created"), wide=True),
        ),
        lambda name, project: group_path(full_name(name, project)),
        lambda r: f"group/{r['group']}",
        "moorage.events.>",
    ),
    ResourceType(
        "clusters",
        ("cluster", "cl"),
        (
            Column("CLUSTER", field("id")),
            Column("STATE", field("state")),
            Column("NODES", field("nodes")),
            Column("FREE", lambda r: amounts(r.get("free"))),
            Column("ALLOCATABLE", lambda r: amounts(r.get("allocatable")), wide=True),
            Column("LABELS", _pairs, wide=True),
        ),
        lambda name, project: path("clusters", *cluster_parts(name)),
        lambda r: f"cluster/{r['id']}",
        "moorage.events.>",
    ),
    ResourceType(
        "nodes",
        ("node", "no"),
        (
            Column("CLUSTER", field("cluster")),
            Column("NODE", field("name")),
            Column("USABLE", lambda r: yes_no(r.get("usable"))),
            Column("FREE", lambda r: amounts(r.get("free"))),
            Column("ALLOCATABLE", lambda r: amounts(r.get("allocatable")), wide=True),
            Column("LABELS", _pairs, wide=True),
        ),
        _node_path,
        lambda r: f"node/{r['cluster']}/{r['name']}",
        "moorage.events.fleet.>",
    ),
    ResourceType(
        "decisions",
        ("decision", "dec"),
        (
            Column("ID", field("id")),
            Column("GROUP", field("group")),
            Column("REVISION", field("revision")),
            Column("SEQ", field("seq")),
            Column("CLAIMS", lambda r: len(r.get("claims", []))),
            Column("CLUSTERS", lambda r: ",".join(dict.fromkeys(c["cluster"] for c in r.get("claims", []))), wide=True),
        ),
        lambda name, project: path("decisions", name),
        lambda r: f"decision/{r['id']}",
        "moorage.events.decisions.>",
    ),
    ResourceType(
        "controllers",
        ("controller", "ctl", "ctrl"),
        (
            Column("NAME", field("name")),
            Column("DEADLINE", lambda r: f"{r.get('deadlineMs', 500):g} ms"),
            Column("POLICY", field("policy")),
            Column("WEIGHT", field("weight")),
            Column("PLACEMENT", lambda r: yes_no(r.get("placement", True)), wide=True),
            Column("ACTIONS", lambda r: yes_no(r.get("actions", False)), wide=True),
            Column("KINDS", lambda r: ",".join(r.get("kinds", {})), wide=True),
        ),
        lambda name, project: path("controllers", name),
        lambda r: f"controller/{r['name']}",
        "moorage.events.>",
    ),
    ResourceType(
        "intents",
        ("intent", "int"),
        (
            Column("KIND", field("kind")),
            Column("PROJECT", _meta("project")),
            Column("NAME", _meta("name")),
            Column("GROUP", lambda r: r["spec"].get("group")),
            Column("APP", lambda r: r["spec"].get("app"), wide=True),
        ),
        _intent_path,
        lambda r: f"{r['kind'].lower()}/{r['metadata']['name']}",
        "moorage.events.intents.>",
    ),
)

_BY_NAME = {alias: kind for kind in KINDS for alias in (kind.name, *kind.aliases)}
_INTENT_KINDS = {"hpaintent": "HpaIntent", "placementintent": "PlacementIntent", "affinityintent": "AffinityIntent"}


def _application(name: str, project: str) -> tuple[str, str]:
    if "/" in name:
        parts = name.split("/")
        return parts[0], parts[1]
    return project or "default", name


def resolve(text: str) -> ResourceType:
    """Returns a resource type by any of its names. Any capitalized name is an intent kind, because controllers may
    register more of them."""
    low = text.lower()
    if low in _BY_NAME:
        return _BY_NAME[low]
    single = low.removesuffix("s")
    if single in _INTENT_KINDS or text[:1].isupper():
        kind = _INTENT_KINDS.get(single, text)

        def item_path(name: str, project: str) -> str:
            return path("intents", kind, project or "default", name)

        return replace(_BY_NAME["intents"], intent_kind=kind, item_path=item_path)
    raise Failure(f"unknown resource type {text!r}; known are {', '.join(k.name for k in KINDS)}", USAGE)
