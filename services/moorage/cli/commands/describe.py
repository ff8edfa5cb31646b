"""`moorage describe`: shows the details of one resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from ..event_summaries import summary
from ..exit_codes import DONE
from ..gateway_client import Client, group_path
from ..output import Project, StateDir, amounts, yes_no
from ..placement_text import why_text
from ..resource_types import part_usage
from ..suggestions import resolve_for
from ..table import table
from ..terminal import as_yaml, out
from .completion import Cluster, KindName, ObjectName


def describe(
    kind: KindName,
    name: ObjectName = "",
    /,
    *,
    cluster: Annotated[Cluster, Parameter(help="The resource class of this cluster.")] = "",
    project: Project = "",
    state: StateDir = None,
) -> int:
    """Show the details of one resource: fields, placement and last events."""
    if "/" in kind and not name:
        kind, _, name = kind.partition("/")
    found = resolve_for("describe", kind, name, state)
    client = Client.find(state)
    if not name:
        from ..exit_codes import USAGE, Failure

        raise Failure(f"{kind}: a name is required", USAGE)
    of_cluster = {"cluster": cluster} if cluster else {}
    item: dict[str, Any] = client.get(found.item_path(name, project), **of_cluster)
    if found.name == "clusters":
        _cluster(client, item)
    elif found.name in ("groups", "applications"):
        group = item["group"] if found.name == "groups" else item["status"]["group"]
        _group(client, group, item if found.name == "groups" else item["status"])
    elif found.name == "nodes":
        _node(client, item)
    elif found.fleet_kind == "ResourceClass":
        from .explain_class import explain_class

        out(as_yaml({key: value for key, value in item.items() if key != "status"}))
        return explain_class(client, {"class": name, "cluster": cluster}, "table")
    else:
        out(as_yaml(item))
    return DONE


def _group(client: Client, group: str, item: dict[str, Any]) -> None:
    out(why_text(client.get(group_path(group, "why"))))
    rows = [[k, item[k]] for k in ("created", "labels", "intents") if item.get(k)]
    if rows:
        out(table(["", ""], [["  " + k, _plain(v)] for k, v in rows], heading=False))
    events = client.get(group_path(group, "story"))["items"][-10:]
    if events:
        out("  last events")
        rows = [["   ", e["time"][11:19], e["subject"].split(".", 2)[2].rsplit(".", 4)[0], summary(e)] for e in events]
        out(table(["", "", "", ""], rows, heading=False))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def _node(client: Client, item: dict[str, Any]) -> None:
    """Shows a node and draws the tree of its parts."""
    out(as_yaml({key: value for key, value in item.items() if key not in ("zones", "providers")}))
    parts = client.items("/v1/parts", cluster=item["cluster"], node=item["name"], limit="5000")
    if parts:
        rows = [
            [branch, part["kind"], part_usage(part), ",".join(part["traits"])]
            for branch, part in tree(item["name"], parts)
        ]
        out(table(["PART", "KIND", "USED", "TRAITS"], [[item["name"], "node", "", ""], *rows]))


def tree(node: str, parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the parts of a node as they are drawn, a parent before its children. Those that other nodes reach, too, are drawn as its
    own."""
    children: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        children.setdefault(part["parent"] or node, []).append(part)
    open_parts = [(part, "", i + 1 == len(children[node])) for i, part in enumerate(children.get(node, []))][::-1]
    while open_parts:
        part, indent, last = open_parts.pop()
        name = part["id"].removeprefix(f"{part['parent']}/")
        yield f"{indent}{'└─' if last else '├─'} {name}", part
        below = children.get(part["id"], [])
        inner = f"{indent}{'   ' if last else '│  '}"
        open_parts.extend((child, inner, i + 1 == len(below)) for i, child in reversed(list(enumerate(below))))


def _cluster(client: Client, item: dict[str, Any]) -> None:
    out(f"{item['id']}  {item['state']}  seq {item['seq']}")
    out(f"  labels       {_plain(item.get('labels') or {}) or '-'}")
    out(f"  allocatable  {amounts(item.get('allocatable')) or '-'}")
    out(f"  free         {amounts(item.get('free')) or '-'}")
    nodes = client.items("/v1/nodes", cluster=item["id"], limit="500")
    rows = [
        ["  " + n["name"], yes_no(n["usable"]), amounts(n.get("free")), amounts(n.get("allocatable"))] for n in nodes
    ]
    out(table(["  NODE", "USABLE", "FREE", "ALLOCATABLE"], rows))
    if item.get("claims"):
        claims = [["  " + c["id"], c["group"], c["app"], c["object"]] for c in item["claims"]]
        out(table(["  CLAIM", "GROUP", "APP", "OBJECT"], claims))
