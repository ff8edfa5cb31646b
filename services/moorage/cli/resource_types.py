"""The resource types of `get` and `describe`: names and short names as in kubectl, REST paths and columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from moorage.model.intent_kinds import INTENT_KINDS

from .durations import age
from .exit_codes import USAGE, Failure
from .gateway_client import group_path, path
from .machine_rows import (
    conditions,
    guests_named,
    is_ready,
    machine_of_pool,
    machine_usage,
    node_conditions,
    pool_of,
    slots_named,
)
from .names import cluster_parts, full_name
from .output import Column, Row, clusters_of, field, yes_no
from .quantities import percent, readable
from .suggestions import closest

Columns = tuple[Column, ...]


@dataclass(frozen=True)
class ResourceType:
    name: str
    aliases: tuple[str, ...]
    columns: Columns | Callable[[Sequence[Row]], Columns]
    item_path: Callable[[str, str], str]  # name, project → REST path
    qualified_name: Callable[[Row], str]
    subject: str  # events that may change it
    intent_kind: str = ""
    fleet_kind: str = ""  # of documents that belong to the whole fleet
    collection: str = ""  # its list in REST; empty: its name
    #: Returns the query and the test for what of its list a name means, where it means several.
    named: Callable[[str], tuple[dict[str, str], Callable[[Row], bool]]] | None = None
    view: Callable[[Row], Row] | None = None  # of what REST has

    @property
    def list_path(self) -> str:
        return path(self.collection or self.name)

    def columns_for(self, items: Sequence[Row]) -> Columns:
        """Returns the columns; clusters and nodes have one for each resource."""
        return self.columns(items) if callable(self.columns) else self.columns


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


def _part_path(name: str, project: str) -> str:
    parts = name.split("/", 2)
    if len(parts) != 3 or "/" not in parts[2]:
        raise Failure(f"{name!r} is not a part name; use PROVIDER/CLUSTER/NODE/PART", USAGE)
    return path("parts", *parts)


def _intent_path(name: str, project: str) -> str:
    kind, slash, rest = name.partition("/")
    if not slash:
        raise Failure(f"{name!r} is not an intent name; use KIND/NAME", USAGE)
    return path("intents", kind, project or "default", rest)


def _pairs(row: Row) -> str:
    return ",".join(f"{k}={v}" for k, v in sorted((row.get("labels") or {}).items()))


def _cluster_columns(items: Sequence[Row]) -> Columns:
    return (
        Column("CLUSTER", field("id"), is_name=True),
        Column("STATE", field("state"), least=8),
        Column("NODES", field("nodes")),
        *_resource_columns(items),
        *_TIMES,
        Column("LABELS", _pairs, wide=True),
    )


def _node_columns(items: Sequence[Row]) -> Columns:
    return (
        Column("CLUSTER", field("cluster"), is_name=True),
        Column("NODE", field("name"), is_name=True),
        Column("USABLE", lambda r: yes_no(r.get("usable"))),
        *_resource_columns(items),
        *_TIMES,
        Column("LABELS", _pairs, wide=True),
    )


_TIMES = (
    Column("AGE", lambda row: age(row.get("created")), least=5),
    Column("REPORT", lambda row: f"{ago} ago" if (ago := age(row.get("lastReport"))) else "", least=8),
)


def _resource_columns(items: Sequence[Row]) -> Iterable[Column]:
    """Yields a column for each resource of the items: CPU and memory first, pods last and only in wide tables. Titles are
    without the vendor's domain where that is unambiguous."""
    names = {name for item in items for name in item.get("allocatable") or ()}
    short = Counter(name.rpartition("/")[2] for name in names)
    for name in sorted(names, key=lambda n: (n == "pods", n not in ("cpu", "memory"), n)):
        title = name.rpartition("/")[2]
        yield Column((title if short[title] == 1 else name).upper(), partial(_usage, name), wide=name == "pods")


def _usage(resource: str, row: Row) -> str:
    """Formats used, total and per cent of a resource: `5/32 16%`."""
    total = (row.get("allocatable") or {}).get(resource)
    if total is None:
        return ""
    used = (row.get("used") or {}).get(resource, "0")
    return f"{readable(resource, used)}/{readable(resource, total)} {percent(resource, used, total)}"


def part_usage(part: Mapping[str, Any]) -> str:
    """Formats used and total of each class of a part: `cpu 2/4, FPGA 0/1`."""
    inventories: dict[str, Row] = part["inventories"]
    names = sorted(inventories, key=lambda name: (name not in ("cpu", "memory"), name))
    used = part["used"]
    return ", ".join(f"{n} {readable(n, used[n])}/{readable(n, inventories[n]['total'])}" for n in names)


def _listed_only(name: str, project: str) -> str:
    raise Failure("these are only listed, not described; use `moorage get`", USAGE)


KINDS: tuple[ResourceType, ...] = (
    ResourceType(
        "applications",
        ("application", "app", "apps"),
        (
            Column("PROJECT", _meta("project")),
            Column("NAME", _meta("name"), is_name=True),
            Column("APPS", lambda r: ",".join(a["name"] for a in r["spec"].get("apps", []))),
            Column("PHASE", lambda r: r["status"]["phase"], least=11),
            Column("REVISION", lambda r: _revision(r["status"]), least=13),
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
            Column("GROUP", field("group"), is_name=True),
            Column("REVISION", _revision, least=13),
            Column("STATE", field("state"), least=18),
            Column("PHASE", field("phase"), least=11),
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
        _cluster_columns,
        lambda name, project: path("clusters", *cluster_parts(name)),
        lambda r: f"cluster/{r['id']}",
        "moorage.events.>",
    ),
    ResourceType(
        "nodes",
        ("node", "no"),
        _node_columns,
        _node_path,
        lambda r: f"node/{r['cluster']}/{r['name']}",
        "moorage.events.fleet.>",
    ),
    ResourceType(
        "parts",
        ("part",),
        (
            Column("CLUSTER", field("cluster"), is_name=True),
            Column("PART", field("id"), is_name=True),
            Column("KIND", field("kind")),
            Column("USED", part_usage),
            Column("HEALTH", field("health"), wide=True),
            Column("HOLDERS", lambda r: ",".join(h.get("claim") or h["consumer"] for h in r["holders"]), wide=True),
            Column("NODES", lambda r: ",".join(r.get("nodes", ())) or r["node"], wide=True),
            Column("TRAITS", lambda r: ",".join(r["traits"]), wide=True),
            Column("AGGREGATES", lambda r: ",".join(r["aggregates"]), wide=True),
        ),
        _part_path,
        lambda r: f"part/{r['cluster']}/{r['id']}",
        "moorage.events.fleet.>",
    ),
    ResourceType(
        "machines",
        ("machine", "mc"),
        (
            Column("NAME", _meta("name"), is_name=True),
            Column("READY", is_ready, least=5),
            Column("SLOTS", machine_usage),
            Column("NODES", node_conditions, wide=True),
            Column("REASON", lambda r: next((c["message"] for c in conditions(r) if c.get("message")), "")),
        ),
        lambda name, project: path("machines", name),
        lambda r: f"machine/{r['metadata']['name']}",
        "moorage.events.>",
        fleet_kind="Machine",
        collection="machines",
    ),
    ResourceType(
        "machinenodepools",
        ("machinenodepool", "mnp"),
        (
            Column("NAME", _meta("name"), is_name=True),
            Column("READY", is_ready, least=5),
            Column("NODES", node_conditions),
        ),
        lambda name, project: path("machines", machine_of_pool(name)),
        lambda r: f"machinenodepool/{r['metadata']['name']}",
        "moorage.events.>",
        collection="machines",
        view=pool_of,
    ),
    ResourceType(
        "slots",
        ("slot",),
        (
            Column("MACHINE", field("machine"), is_name=True),
            Column("CLUSTER", field("cluster")),
            Column("NODE", field("node")),
            Column("STATE", field("state"), least=8),
            Column("HOLDER", field("holder")),
            Column("CLAIM", field("claim"), wide=True),
        ),
        _listed_only,
        lambda r: "/".join(filter(None, ("slot", r["machine"], r["cluster"], r.get("node")))),
        "moorage.events.>",
        named=slots_named,
    ),
    ResourceType(
        "guests",
        ("guest",),
        (
            Column("CLUSTER", field("cluster")),
            Column("NAMESPACE", field("namespace")),
            Column("NAME", field("name"), is_name=True),
            Column("MACHINE", field("machine")),
            Column("STATE", field("state"), least=7),
            Column("NODE", field("node")),
            Column("REASON", field("reason")),
            Column("MESSAGE", field("message"), wide=True),
            Column("GROUP", field("group"), wide=True),
            Column("WINDOW", field("window"), wide=True),
            Column("AGE", lambda row: age(row.get("createdAt")), least=5),
        ),
        _listed_only,
        lambda r: f"guest/{r['cluster']}/{r['namespace']}/{r['name']}",
        "moorage.events.>",
        named=guests_named,
    ),
    ResourceType(
        "decisions",
        ("decision", "dec"),
        (
            Column("ID", field("id"), is_name=True),
            Column("GROUP", field("group"), is_name=True),
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
            Column("NAME", field("name"), is_name=True),
            Column("DEADLINE", lambda r: f"{r.get('deadlineMs', 500):g} ms"),
            Column("POLICY", field("policy")),
            Column("WEIGHT", field("weight")),
            Column("PLACEMENT", lambda r: yes_no(r.get("placement", True)), wide=True),
            Column("ACTIONS", lambda r: yes_no(r.get("actions", False)), wide=True),
            Column("KINDS", lambda r: ",".join(r.get("kinds", {})), wide=True),
            Column("CONCERNS", lambda r: ",".join(r.get("concerns", [])) or "all", wide=True),
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
            Column("NAME", _meta("name"), is_name=True),
            Column("GROUP", lambda r: r["spec"].get("group")),
            Column("APP", lambda r: r["spec"].get("app"), wide=True),
        ),
        _intent_path,
        lambda r: f"{r['kind'].lower()}/{r['metadata']['name']}",
        "moorage.events.intents.>",
    ),
)


def _class_name(row: Row) -> str:
    meta = row["metadata"]
    return f"{meta['name']} ({meta['cluster']})" if meta.get("cluster") else str(meta["name"])


def _age(row: Row) -> str:
    return age(row["metadata"].get("creationTimestamp"))


def _listed(*names: str) -> Callable[[Row], object]:
    """Returns the text of a list in the spec."""

    def text(row: Row) -> object:
        found = row["spec"]
        for name in names:
            found = found.get(name) or ()
        return ",".join(map(str, found))

    return text


def _of_fleet(kind: str, collection: str, aliases: tuple[str, ...], columns: Columns) -> ResourceType:
    """Returns the type of documents that belong to the whole fleet."""
    single = kind.lower()
    plural = f"{single}es" if single.endswith("s") else f"{single}s"

    def name_of(row: Row) -> str:
        meta = row["metadata"]
        return f"{single}/{meta['cluster'] + '/' if meta.get('cluster') else ''}{meta['name']}"

    return ResourceType(
        plural,
        (single, *aliases),
        columns,
        lambda name, project: path(collection, name),
        name_of,
        "moorage.events.>" if kind == "ResourceClass" else "moorage.events.classes.>",
        fleet_kind=kind,
        collection=collection,
    )


FLEET_TYPES = (
    _of_fleet(
        "ResourceClass",
        "resource-classes",
        ("rcls",),
        (
            Column("NAME", _class_name, is_name=True),
            Column("ALLOCATABLE", lambda r: r["status"]["allocatable"], least=11),
            Column("REQUESTED", lambda r: r["status"]["requested"], least=9),
            Column("FREE", lambda r: r["status"]["free"], least=6),
            Column("CLUSTERS", lambda r: len(r["status"]["clusters"])),
            Column("AGE", _age, least=5),
        ),
    ),
    _of_fleet(
        "DeviceSource",
        "device-sources",
        (),
        (
            Column("NAME", _meta("name"), is_name=True),
            Column("MATCH", lambda r: r["spec"]["match"].get("driver") or r["spec"]["match"].get("resource")),
            Column("KIND", lambda r: r["spec"].get("kind")),
            Column("VENDOR", lambda r: r["spec"].get("vendor")),
            Column("PROPERTIES", _listed("properties")),
            Column("BUILT IN", lambda r: yes_no(r.get("builtIn"))),
        ),
    ),
    _of_fleet(
        "DeviceQuota",
        "device-quotas",
        (),
        (
            Column("NAME", _meta("name"), is_name=True),
            Column("PROJECTS", _listed("projects")),
            Column(
                "DEVICES",
                lambda r: ",".join(f"{item['class']}={item['count']}" for item in r["spec"].get("devices", [])),
            ),
            Column("AGE", _age, least=5),
        ),
    ),
    _of_fleet(
        "ClassGrant",
        "class-grants",
        (),
        (
            Column("NAME", _meta("name"), is_name=True),
            Column("PROJECTS", _listed("projects")),
            Column("CLASSES", _listed("classes")),
            Column("ALGORITHMS", _listed("algorithms")),
            Column("AGE", _age, least=5),
        ),
    ),
)
KINDS += FLEET_TYPES


def _past_clusters(row: Row) -> str:
    apps = row.get("apps")
    found = [c for app in apps.values() for c in app] if apps else [c["cluster"] for c in row.get("claims", [])]
    return ",".join(dict.fromkeys(found))


_BY_NAME = {alias: kind for kind in KINDS for alias in (kind.name, *kind.aliases)}
#: Decisions as `get decisions --all` lists them.
PAST_DECISIONS = replace(
    _BY_NAME["decisions"],
    columns=(
        Column("ID", field("id")),
        Column("GROUP", field("group")),
        Column("REVISION", field("revision")),
        Column("SEQ", field("seq")),
        Column("OUTCOME", field("outcome")),
        Column("DECIDED", field("decided")),
        Column("ENDED", field("ended")),
        Column("CLUSTERS", _past_clusters, wide=True),
        Column("RECORDED", lambda r: yes_no(r.get("recorded")), wide=True),
        Column("REPLACED BY", field("replacedBy"), wide=True),
    ),
)
INTENTS = {kind.lower(): kind for kind in INTENT_KINDS}


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
    if single in INTENTS or text[:1].isupper():
        kind = INTENTS.get(single, text)

        def item_path(name: str, project: str) -> str:
            return path("intents", kind, project or "default", name)

        return replace(_BY_NAME["intents"], intent_kind=kind, item_path=item_path)
    close = closest(low, [*_BY_NAME, *INTENTS])
    suggestion = f"did you mean {close!r}?" if close else f"known are {', '.join(k.name for k in KINDS)}"
    raise Failure(f"unknown resource type {text!r}; {suggestion}", USAGE)
