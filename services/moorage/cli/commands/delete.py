"""`moorage delete`: an application is removed from its clusters before its documents are deleted."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from ..documents import Document, read_all, read_values
from ..durations import seconds
from ..emco_files import delete as delete_anchored
from ..emco_files import is_anchored
from ..exit_codes import DONE, TIMEOUT, USAGE, Failure
from ..gateway_client import Client, Refusal, path
from ..names import cluster_parts, full_name
from ..output import Project, StateDir
from ..resource_types import KINDS, ResourceType
from ..suggestions import for_failure, resolve_for
from ..terminal import note, out
from .completion import Cluster, KindName, ObjectName
from .wait import get_group, subject_of

_COLLECTIONS = {found.fleet_kind: found.collection for found in KINDS if found.fleet_kind}


def delete(
    kind: KindName = "",
    name: ObjectName = "",
    /,
    *,
    filename: Annotated[list[str] | None, Parameter(name=["--filename", "-f"], negative="")] = None,
    values: Annotated[list[str] | None, Parameter(name=["--values", "-v"], negative="")] = None,
    wait: bool = True,
    timeout: str = "120s",
    abandon_claims: Annotated[bool, Parameter(negative="")] = False,
    cluster: Annotated[Cluster, Parameter(help="Delete the resource class of this cluster.")] = "",
    project: Project = "",
    state: StateDir = None,
) -> int:
    """Delete resources, given by KIND NAME or by documents.

    An application is terminated before it is deleted.

    Parameters
    ----------
    filename
        Delete the resources of these documents, in reverse order: a file, a directory, or - for stdin (repeatable).
    values
        Values file for documents that are templates (repeatable).
    wait
        Wait until the resources are terminated and deleted.
    timeout
        Maximum time to wait.
    abandon_claims
        Delete a lost cluster even if groups have claims on it. The groups are placed again; pods that may still run on the
        cluster are not removed.
    """
    within = seconds(timeout)
    targets: list[tuple[str, str, str] | Document] = []  # kind, project or cluster, name
    if filename:
        if kind:
            raise Failure("give either -f FILE or KIND NAME, not both", USAGE)
        documents = read_all(filename, values=read_values(values))
        targets = [d if is_anchored(d.body) else (d.kind, _owner(d), d.name) for d in reversed(documents)]
    else:
        if not kind:
            raise Failure("give -f FILE or KIND NAME", USAGE)
        if not name and "/" in kind:
            kind, _, name = kind.partition("/")
        resource_type = resolve_for("delete", kind, name, state)
        if not name:
            raise Failure(f"{kind}: a name is required", USAGE)
        targets = [(resource_type.fleet_kind, cluster, name)]
        if not resource_type.fleet_kind:
            targets = [_target(resource_type, name, project)]
    client = Client.find(state)
    code = DONE
    for target in targets:
        try:
            if isinstance(target, Document):
                result = delete_anchored(client, target, wait, within)
            else:
                result = _delete(client, *target, wait, within, abandon_claims)
            code = code or result
        except Refusal as refusal:
            note(f"moorage: {refusal}{for_failure(refusal)}")
            code = code or refusal.code
    return code


def _owner(document: Document) -> str:
    """Returns the project of a document, or the cluster of one that belongs to the fleet."""
    meta = document.body.get("metadata")
    if document.kind in _COLLECTIONS:
        return str(meta.get("cluster") or "") if isinstance(meta, dict) else ""
    return document.project


def _target(found: ResourceType, name: str, project: str) -> tuple[str, str, str]:
    if found.name in ("applications", "groups"):
        group = full_name(name, project).split("/")
        return "Application", group[0], group[1]
    if found.name == "clusters":
        return "Cluster", *cluster_parts(name)
    if found.name != "intents":
        raise Failure(f"{found.name} cannot be deleted", USAGE)
    given, slash, rest = name.partition("/")
    if found.intent_kind:
        return found.intent_kind, project or "default", name
    if not slash:
        raise Failure(f"name the intent as KIND/NAME, for example HpaIntent/{name}", USAGE)
    return given, project or "default", rest


def _delete(client: Client, kind: str, project: str, name: str, wait: bool, within: float, abandon: bool) -> int:
    if kind == "Fleet":
        client.call("PUT", "/v1/sim/clusters", body={"clusters": []})
        out("fleet deleted")
        return DONE
    if kind == "Cluster":
        query = {"abandonClaims": "true"} if abandon else None
        client.call("DELETE", path("clusters", project, name), query=query, timeout=60)
        out(f"cluster/{project}/{name} deleted")
        return DONE
    if kind in _COLLECTIONS:
        client.call("DELETE", path(_COLLECTIONS[kind], name), query={"cluster": project} if project else None)
        out(f"{kind.lower()}/{name} deleted")
        return DONE
    if kind != "Application":
        client.call("DELETE", path("intents", kind, project, name))
        out(f"{kind.lower()}/{name} deleted")
        return DONE
    group = full_name(name, project)
    client.call("DELETE", path("applications", project, name))
    if not wait:
        out(f"application/{name} is being deleted")
        return DONE
    end = time.monotonic() + within
    while True:
        for _ in client.events(subject_of(group), until=min(end, time.monotonic() + 1.0)):
            if get_group(client, group) is None:
                break
        if get_group(client, group) is None:
            out(f"application/{name} deleted")
            return DONE
        if time.monotonic() > end:
            note(
                f"moorage: timed out after {within:g} s waiting for {group} to terminate; run `moorage why {name}` for details"
            )
            return TIMEOUT
