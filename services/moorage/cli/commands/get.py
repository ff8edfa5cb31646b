"""`moorage get`: lists and single objects, once or watched."""

from __future__ import annotations

import time
from typing import Annotated, Any

from cyclopts import Parameter

from ..exit_codes import DONE
from ..gateway_client import Client, Refusal, path
from ..output import Format, Project, Row, StateDir, Watch, rows_of, show, show_list
from ..resource_types import ResourceType, resolve
from ..terminal import as_json, as_yaml, out, table
from .completion import Cluster, Group, KindName, ObjectName

#: Events come in bursts; one look answers for all of a burst.
_GATHER = 0.15


def get(
    kind: KindName,
    name: ObjectName = "",
    /,
    *,
    output: Format = "table",
    watch: Watch = False,
    selector: Annotated[str, Parameter(name=["--selector", "-l"])] = "",
    group: Group = "",
    cluster: Cluster = "",
    project: Project = "",
    state: StateDir = None,
) -> int:
    """Show applications, groups, clusters, nodes, decisions, controllers or intents.

    Parameters
    ----------
    kind
        The kind, in any of its names.
    name
        One of them; without it, all.
    selector
        Only those whose labels match, as kubectl has it: a=b,c!=d,e,f in (g,h).
    group
        Only decisions of this group.
    cluster
        Only nodes of this cluster.
    """
    if "/" in kind and not name:
        kind, _, name = kind.partition("/")
    found = resolve(kind)
    client = Client.find(state)
    query = {"limit": "500"}
    if selector:
        query["labelSelector"] = selector
    if project and found.name in ("applications", "groups", "intents"):
        query["project"] = project
    if group:
        from ..names import full_name

        query["group"] = full_name(group, project)
    if cluster:
        query["cluster"] = cluster
    if found.intent_kind:
        query["kind"] = found.intent_kind
    return (
        _watch(client, found, name, project, query, output)
        if watch
        else _once(client, found, name, project, query, output)
    )


def _items(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str]) -> list[Row]:
    if name:
        return [client.get(kind.one(name, project))]
    return client.items(path(kind.name), **query)


def _once(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str], output: str) -> int:
    items = _items(client, kind, name, project, query)
    if name and output in ("json", "yaml"):
        return show(items[0], output)
    return show_list(items, kind.columns, output, kind.named)


def _watch(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str], output: str) -> int:
    """Prints what there is, then each object again when it changed or is gone. Ends with Ctrl-C, or when the one is gone."""
    columns = [c for c in kind.columns if output == "wide" or not c.wide]
    seen: dict[str, Any] = {}
    heading = True
    while True:
        for _ in client.events(kind.subject, until=time.monotonic() + 5.0):
            time.sleep(_GATHER if seen else 0)
            try:
                items = _items(client, kind, name, project, query)
            except Refusal as wrong:
                if not (name and seen and wrong.status == 404):
                    raise
                items = []
            changed = [item for item in items if seen.get(kind.named(item)) != item]
            if changed:
                _print(changed, kind, columns, output, heading)
                heading = False
            now = {kind.named(item): item for item in items}
            _print_gone([item for known, item in seen.items() if known not in now], kind, output)
            if name and not items:
                return DONE
            seen = now


def _print_gone(gone: list[Row], kind: ResourceType, output: str) -> None:
    """As it was last seen; in words where words are read."""
    for item in gone:
        if output == "json":
            out(as_json({**item, "deleted": True}))
        elif output == "yaml":
            out(as_yaml({**item, "deleted": True}) + "\n---")
        else:
            out(f"{kind.named(item)} deleted")


def _print(changed: list[Row], kind: ResourceType, columns: list[Any], output: str, heading: bool) -> None:
    if output == "json":
        out("\n".join(as_json(item) for item in changed))
    elif output == "yaml":
        out("\n---\n".join(as_yaml(item) for item in changed) + "\n---")
    elif output == "name":
        out("\n".join(kind.named(item) for item in changed))
    else:
        out(table([c.title for c in columns], rows_of(changed, columns), heading=heading))
