"""`moorage get`: prints lists and single resources, once or whenever they change."""

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

#: Events come in bursts; waiting this long allows one request for the whole burst.
_BURST_SECONDS = 0.15


def get(
    kind: KindName,
    name: ObjectName = "",
    /,
    *,
    output: Format = "table",
    watch: Watch = False,
    selector: Annotated[str, Parameter(name=["--selector", "-l"])] = "",
    group: Annotated[Group, Parameter(help="Only decisions of this group.")] = "",
    cluster: Annotated[Cluster, Parameter(help="Only nodes of this cluster.")] = "",
    project: Project = "",
    state: StateDir = None,
) -> int:
    """List resources of one type, or show one of them.

    Parameters
    ----------
    selector
        Label selector as in kubectl, for example a=b,c!=d,e,f in (g,h).
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
        return [client.get(kind.item_path(name, project))]
    return client.items(path(kind.name), **query)


def _once(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str], output: str) -> int:
    items = _items(client, kind, name, project, query)
    if name and output in ("json", "yaml"):
        return show(items[0], output)
    return show_list(items, kind.columns, output, kind.qualified_name)


def _watch(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str], output: str) -> int:
    """Prints all items, then each again when it changes or is deleted. Ends with Ctrl-C, or when the one named item is
    deleted."""
    columns = [c for c in kind.columns if output == "wide" or not c.wide]
    seen: dict[str, Any] = {}
    heading = True
    while True:
        for _ in client.events(kind.subject, until=time.monotonic() + 5.0):
            time.sleep(_BURST_SECONDS if seen else 0)
            try:
                items = _items(client, kind, name, project, query)
            except Refusal as refusal:
                if not (name and seen and refusal.status == 404):
                    raise
                items = []
            changed = [item for item in items if seen.get(kind.qualified_name(item)) != item]
            if changed:
                _print(changed, kind, columns, output, heading)
                heading = False
            now = {kind.qualified_name(item): item for item in items}
            _print_deleted([item for known, item in seen.items() if known not in now], kind, output)
            if name and not items:
                return DONE
            seen = now


def _print_deleted(deleted: list[Row], kind: ResourceType, output: str) -> None:
    """Prints deleted items as they were last seen, with `deleted: true` in JSON and YAML."""
    for item in deleted:
        if output == "json":
            out(as_json({**item, "deleted": True}))
        elif output == "yaml":
            out(as_yaml({**item, "deleted": True}) + "\n---")
        else:
            out(f"{kind.qualified_name(item)} deleted")


def _print(changed: list[Row], kind: ResourceType, columns: list[Any], output: str, heading: bool) -> None:
    if output == "json":
        out("\n".join(as_json(item) for item in changed))
    elif output == "yaml":
        out("\n---\n".join(as_yaml(item) for item in changed) + "\n---")
    elif output == "name":
        out("\n".join(kind.qualified_name(item) for item in changed))
    else:
        out(table([c.title for c in columns], rows_of(changed, columns), heading=heading))
