"""`moorage delete`: an application is taken off its clusters first, and only then forgotten."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from ..documents import Document, read_all, read_values
from ..durations import seconds
from ..emco_files import delete as anchored
from ..emco_files import is_anchored
from ..exit_codes import DONE, TIMEOUT, USAGE, Failure
from ..gateway_client import Client, Refusal, path
from ..names import cluster_parts, full_name
from ..output import Project, StateDir
from ..resource_types import resolve
from ..terminal import note, out
from .completion import KindName, ObjectName
from .wait import look, subject_of


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
    project: Project = "",
    state: StateDir = None,
) -> int:
    """Delete what documents name, or KIND NAME.

    Parameters
    ----------
    filename
        Documents whose objects are to be deleted, the last one first: a file, a directory, or -.
    values
        The files are templates, and this has their values.
    wait
        Wait until it is terminated and gone.
    timeout
        How long to wait.
    abandon_claims
        A dead cluster is forgotten also where groups have claims: what stood there is decided anew, and what may still run
        there is left to itself.
    """
    within = seconds(timeout)
    targets: list[tuple[str, str, str] | Document] = []  # kind, project, name
    if filename:
        if kind:
            raise Failure("give either -f FILE or KIND NAME, not both", USAGE)
        documents = read_all(filename, values=read_values(values))
        targets = [d if is_anchored(d.body) else (d.kind, d.project, d.name) for d in reversed(documents)]
    else:
        if not kind:
            raise Failure("give -f FILE or KIND NAME", USAGE)
        if not name and "/" in kind:
            kind, _, name = kind.partition("/")
        if not name:
            raise Failure(f"which {kind}? give its name", USAGE)
        targets = [_target(kind, name, project)]
    client = Client.find(state)
    code = DONE
    for one in targets:
        try:
            if isinstance(one, Document):
                done = anchored(client, one, wait, within)
            else:
                done = _delete(client, *one, wait, within, abandon_claims)
            code = code or done
        except Refusal as wrong:
            note(f"moorage: {wrong}")
            code = code or wrong.code
    return code


def _target(kind: str, name: str, project: str) -> tuple[str, str, str]:
    found = resolve(kind)
    if found.name in ("applications", "groups"):
        group = full_name(name, project).split("/")
        return "Application", group[0], group[1]
    if found.name == "clusters":
        return "Cluster", *cluster_parts(name)
    if found.name != "intents":
        raise Failure(f"{found.name} are not deleted by hand", USAGE)
    given, slash, rest = name.partition("/")
    if found.intent_kind:
        return found.intent_kind, project or "default", name
    if not slash:
        raise Failure(f"which intent? give it as KIND/NAME, for example HpaIntent/{name}", USAGE)
    return given, project or "default", rest


def _delete(client: Client, kind: str, project: str, name: str, wait: bool, within: float, abandon: bool) -> int:
    if kind == "Fleet":
        client.call("PUT", "/v1/sim/clusters", body={"clusters": []})
        out("fleet deleted")
        return DONE
    if kind == "Cluster":
        query = {"abandonClaims": "true"} if abandon else None
        client.call("DELETE", path("clusters", project, name), query=query, timeout=60)
        out(f"cluster/{project}/{name} forgotten")
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
            if look(client, group) is None:
                break
        if look(client, group) is None:
            out(f"application/{name} deleted")
            return DONE
        if time.monotonic() > end:
            note(f"moorage: {group} is not terminated after {within:g} s; `moorage why {name}` tells what it waits for")
            return TIMEOUT
