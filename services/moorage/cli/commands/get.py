"""`moorage get`: prints lists and single resources, once or whenever they change."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

from cyclopts import Parameter

from ..exit_codes import DONE, MISSING, USAGE, Failure
from ..formats import DEVICE_CLASS, sorted_by, template
from ..gateway_client import Client, path
from ..output import DEFAULT, Column, Listing, Project, Row, Rows, StateDir, Watch, field, show_list, show_one
from ..resource_types import KINDS, PAST_DECISIONS, ResourceType
from ..suggestions import resolve_for
from ..terminal import as_json, as_yaml, note, out
from .completion import Cluster, Group, KindName, ObjectName

#: Events come in bursts; waiting this long allows one request for the whole burst.
_BURST_SECONDS = 0.15


def get(
    kind: KindName = "",
    name: ObjectName = "",
    /,
    *,
    listing: Listing = DEFAULT,
    watch: Watch = False,
    selector: Annotated[str, Parameter(name=["--selector", "-l"])] = "",
    group: Annotated[Group, Parameter(help="Only decisions of this group.")] = "",
    cluster: Annotated[
        Cluster,
        Parameter(help="Only nodes, parts, slots or guests of this cluster; the resource class of this cluster."),
    ] = "",
    class_: Annotated[
        str, Parameter(name="--class", help="Only parts that this resource class, or DeviceClass of clusters, selects.")
    ] = "",
    node: Annotated[str, Parameter(help="Only parts of nodes of this name.")] = "",
    all_: Annotated[
        bool, Parameter(name="--all", negative="", help="Also past decisions, with how they ended.")
    ] = False,
    project: Project = "",
    state: StateDir = None,
) -> int:
    """List resources of one type, or show one of them. Without a type, list the types.

    `moorage get decisions --all --group shop` lists the past decisions of a group, too, as far as they are remembered. `moorage get
    slots GROUP/TYPE` lists the slots of a machine type, and `moorage get guests NAMESPACE/NAME` the pods of that name.

    Parameters
    ----------
    selector
        Label selector as in kubectl, for example a=b,c!=d,e,f in (g,h).
    """
    if not kind:
        return _types(listing)
    if "/" in kind and not name:
        kind, _, name = kind.partition("/")
    found = resolve_for("get", kind, name, state)
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
    if node:
        query["node"] = node
    if class_:
        query["class"] = class_
    if all_:
        if found.name != "decisions":
            raise Failure(f"--all is for decisions only; {found.name} are listed completely", USAGE)
        query["all"] = "true"
        found = PAST_DECISIONS
    if found.intent_kind:
        query["kind"] = found.intent_kind
    if listing.output == DEVICE_CLASS:
        return _device_class(client, found, name, cluster)
    return (
        _watch(client, found, name, project, query, listing)
        if watch
        else _once(client, found, name, project, query, listing)
    )


def _types(listing: Listing) -> int:
    """Prints the resource types with their short names."""
    types = [{"name": kind.name, "shortNames": list(kind.aliases)} for kind in KINDS]
    columns = (Column("NAME", field("name")), Column("SHORT NAMES", lambda row: ", ".join(row["shortNames"])))
    return show_list(types, columns, listing, lambda row: str(row["name"]))


def _items(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str]) -> list[Row]:
    if name and kind.named is not None:
        more, means = kind.named(name)
        found = [row for row in client.items(kind.list_path, **{**query, **more}) if means(row)]
        if not found:
            raise Failure(f"no {kind.name} {name}", MISSING)
        return found
    if name:
        of_cluster = {"cluster": query["cluster"]} if kind.fleet_kind and "cluster" in query else {}
        items = [client.get(kind.item_path(name, project), **of_cluster)]
    else:
        items = client.items(kind.list_path, **query)
    return items if kind.view is None else [kind.view(item) for item in items]


def _device_class(client: Client, kind: ResourceType, name: str, cluster: str) -> int:
    """Prints the DeviceClass that selects the same devices as a resource class, and on stderr what that cannot say."""
    if kind.fleet_kind != "ResourceClass" or not name:
        raise Failure(f"-o {DEVICE_CLASS} is for one resource class: moorage get resourceclass NAME", USAGE)
    import msgspec

    from moorage.classes import compile_class, device_class
    from moorage.model.resource_classes import DeviceSourceSpec, ResourceClassSpec

    item = client.get(kind.item_path(name, ""), **({"cluster": cluster} if cluster else {}))
    sources = [msgspec.convert(one["spec"], DeviceSourceSpec) for one in client.items(path("device-sources"))]
    found = device_class(name, compile_class(msgspec.convert(item["spec"], ResourceClassSpec)), sources)
    for text in found.unsaid:
        note(f"moorage: not in the DeviceClass: {text}")
    out(as_yaml(found.manifest))
    return DONE


def _once(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str], listing: Listing) -> int:
    items = _items(client, kind, name, project, query)
    columns = kind.columns_for(items)
    if name and kind.named is None:
        return show_one(items[0], columns, listing, kind.qualified_name)
    return show_list(items, columns, listing, kind.qualified_name)


def _watch(client: Client, kind: ResourceType, name: str, project: str, query: dict[str, str], listing: Listing) -> int:
    """Prints all items, then each again when it changes or is deleted. Ends with Ctrl-C, or when the one named item is
    deleted."""
    seen: dict[tuple[str, int], Row] = {}
    printer: _Printer | None = None
    while True:
        for _ in client.events(kind.subject, until=time.monotonic() + 5.0):
            time.sleep(_BURST_SECONDS if seen else 0)
            try:
                items = _items(client, kind, name, project, query)
            except Failure as failure:
                if not (name and seen and failure.code == MISSING):
                    raise
                items = []
            keyed = _keyed(kind, items)
            changed = [item for key, item in keyed.items() if seen.get(key) != _lasting(item)]
            if changed:
                if printer is None and listing.sort_by:
                    changed = sorted_by(changed, listing.sort_by)
                printer = printer or _Printer(kind, changed, listing)
                printer.changed(changed)
            now = {key: _lasting(item) for key, item in keyed.items()}
            if printer is not None:
                printer.deleted([item for known, item in seen.items() if known not in now])
            if name and not items:
                return DONE
            seen = now


def _keyed(kind: ResourceType, items: list[Row]) -> dict[tuple[str, int], Row]:
    """Returns items by name, numbered: slots of a node have no names of their own."""
    counts: Counter[str] = Counter()
    keyed = {}
    for item in items:
        name = kind.qualified_name(item)
        keyed[name, counts[name]] = item
        counts[name] += 1
    return keyed


def _lasting(item: Row) -> Row:
    """Returns an item without what changes with every heartbeat of its cluster."""
    return {key: value for key, value in item.items() if key != "lastReport"}


class _Printer:
    """Prints items as they change, in one format; the rows of a table stay aligned."""

    def __init__(self, kind: ResourceType, first: list[Row], listing: Listing) -> None:
        self._name, self._output = kind.qualified_name, listing.output
        self._render = template(listing.output)
        self._rows = Rows(kind.columns_for(first), listing, stream=True)

    def changed(self, items: list[Row]) -> None:
        if self._render is not None:
            out("\n".join(self._render(item) for item in items))
        elif self._output == "json":
            out("\n".join(as_json(item) for item in items))
        elif self._output == "yaml":
            out("\n---\n".join(as_yaml(item) for item in items) + "\n---")
        elif self._output == "name":
            out("\n".join(self._name(item) for item in items))
        else:
            out("\n".join(self._rows.lines(items)))

    def deleted(self, items: list[Row]) -> None:
        """Prints deleted items as they were last seen, with `deleted: true` in JSON and YAML."""
        for item in items:
            if self._output == "json":
                out(as_json({**item, "deleted": True}))
            elif self._output == "yaml":
                out(as_yaml({**item, "deleted": True}) + "\n---")
            else:
                out(f"{self._name(item)} deleted")
