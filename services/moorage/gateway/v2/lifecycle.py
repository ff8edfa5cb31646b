"""HTTP handlers of the life cycle and the status of groups and logical clouds in `/v2`."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from moorage.bus import subjects
from moorage.model.desired_state import DiffAsk
from moorage.model.groups import GroupRecord, Revision
from moorage.model.names import GroupName
from moorage.model.problems import Refused, Violation, invalid, not_found
from moorage.model.v2_resources import GROUP, Path, group_name

from ..audit import request_id
from ..bus_client import call
from ..core.explain import Known, apps_of
from ..core.v2_status import StatusQuery, status
from ..middleware import Gateway, gateway_of
from ..responses import bad_parameter, json_response
from .commands import body_of
from .queries import path_in, resources_of

VERBS = ("approve", "instantiate", "update", "migrate", "rollback", "stop", "terminate")
CLOUD_VERBS = ("instantiate", "terminate", "stop", "update")
OUTPUTS = ("summary", "all", "detail")
_ALIASES = {
    "targetcompositeappversion": "version",
    "targetdigname": "group",
    "targetdeploymentintentgroup": "group",
    "targetdeploymentintentgroupname": "group",
    "revision": "revision",
}
#: Seconds until a request is repeated. It is longer than usual, because an operation may render charts first.
PATIENCE = 3.0
_any = msgspec.json.Decoder().decode


def group_in(request: web.Request) -> tuple[str, Path]:
    path = path_in(request, GROUP.path)
    try:
        return str(GroupName.parse(group_name(path))), path
    except ValueError:
        raise Refused(not_found("/".join(path))) from None


async def act(request: web.Request, verb: str) -> web.StreamResponse:
    """Runs an operation and returns 202 with URLs to watch. Repeating a completed operation is no error."""
    gateway = gateway_of(request)
    group, path = group_in(request)
    if not resources_of(request).exists(path) and gateway.view.record(group) is None:
        raise Refused(not_found("/".join(path)))
    order: dict[str, Any] = {"group": group, "verb": verb, "cause": request_id(request), "repeat": True}
    watched = group
    if verb in ("migrate", "rollback"):
        parameters = await _parameters(request)
        if verb == "rollback":
            order["revision"] = _revision(parameters.get("revision"))
        else:
            name = GroupName.parse(group)
            version, target = parameters.get("version") or name.version, parameters.get("group")
            if target is None:
                message = "is required: the group that replaces this one"
                raise Refused(invalid([Violation(path="spec.targetDigName", code="Required", message=message)]))
            try:
                watched = str(GroupName.parse(f"{name.project}/{name.app}/{version}/{target}"))
            except ValueError as error:
                raise Refused(
                    invalid([Violation(path="spec.targetDigName", code="InvalidName", message=str(error))])
                ) from None
            order["target"] = watched
    reply = await call(gateway.bus, subjects.INTENTS_ACT, order, timeout=60, again=order, patience=PATIENCE)
    await gateway.view.wait_for_group(group)
    if watched != group:
        await gateway.view.wait_for_group(watched)
    watch = _status_url(request, watched)
    reply.pop("accepted", None)
    reply.pop("name", None)
    return _accepted({**reply, "group": watched, "watch": watch, "events": _events_url(watched)}, watch)


def _accepted(body: dict[str, Any], watch: str) -> web.Response:
    response = json_response(body, 202)
    response.headers["Location"] = watch
    return response


def _status_url(request: web.Request, group: str) -> str:
    project, app, version, name = group.split("/")
    prefix = "/v2" if request.path.startswith("/v2/") else ""
    return f"{prefix}/projects/{project}/composite-apps/{app}/{version}/deployment-intent-groups/{name}/status"


def _events_url(group: str) -> str:
    tokens = GroupName.parse(group).tokens
    return f"/v1/events?subject=moorage.events.*.*.{tokens}"


async def _parameters(request: web.Request) -> dict[str, Any]:
    raw, _ = await body_of(request)
    data = _any(raw)
    spec = data.get("spec", data) if isinstance(data, dict) else None
    if data is not None and not isinstance(spec, dict):
        raise Refused(invalid([Violation(path="spec", code="WrongType", message="must be an object")]))
    if data is None:
        return {}
    assert spec is not None
    known = {_ALIASES.get(str(k).replace("-", "").lower(), ""): v for k, v in spec.items()}
    known.pop("", None)
    return known


def _revision(value: Any) -> int:
    text = str(value).strip() if value is not None and not isinstance(value, bool) else "?"
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        message = "is required: the number of an earlier revision"
        raise Refused(invalid([Violation(path="spec.revision", code="Required", message=message)]))
    return int(text)


# --- status ----------------------------------------------------------------------------------------------------------


async def watch_status(request: web.Request) -> web.StreamResponse:
    """Handles POST of status: returns URLs to watch, like the operations."""
    group, _ = group_in(request)
    known = _known(request, group)
    url = _status_url(request, group)
    body = {"group": group, "state": known.record.state, "revision": known.record.revision}
    return _accepted({**body, "watch": url, "events": _events_url(group)}, url)


async def get_status(request: web.Request) -> web.StreamResponse:
    gateway = gateway_of(request)
    group, _ = group_in(request)
    known = _known(request, group)
    query = request.query
    output = query.get("output", "all")
    if output not in OUTPUTS:
        raise bad_parameter("output", f"must be one of {', '.join(OUTPUTS)}")
    resources = resources_of(request)
    of_group = path_in(request, GROUP.path)
    for app in query.getall("app", ()):
        if app not in apps_of(known) and not resources.exists((*of_group[:5], "apps", app)):
            raise Refused(not_found(f"the app {app} of {group}"))
    fleet = gateway.view.fleet
    connected = {name: fleet.state(cid) != "Stale" for name, cid in fleet.ids.items() if fleet.known[cid]}
    asked = StatusQuery(
        output=output,
        apps=frozenset(query.getall("app", ())),
        clusters=frozenset(_cluster(text) for text in query.getall("cluster", ())),
        resources=frozenset(query.getall("resource", ())),
        detail=await _detail(gateway, known) if output == "detail" else {},
        connected=connected,
    )
    found = status(known, asked, _status_url(request, group))
    body = resources.body(of_group)
    profile = (body or {}).get("spec", {}).get("compositeProfile")
    if profile:
        found["compositeProfile"] = profile
    return json_response(_only(found, query))


def _only(found: dict[str, Any], query: Any) -> dict[str, Any]:
    """Reduces the status to names for the parameters `?apps`, `?clusters` and `?resources`."""
    apps = found.get("apps", [])
    if "apps" in query:
        return {"name": found["name"], "apps": [{"name": app["name"]} for app in apps]}
    if "clusters" in query:
        items = [
            {
                "name": app["name"],
                "clusters": [{k: c[k] for k in ("clusterProvider", "cluster")} for c in app["clusters"]],
            }
            for app in apps
        ]
        return {"name": found["name"], "apps": items}
    if "resources" in query:
        items = [
            {
                "name": app["name"],
                "clusters": [
                    {
                        **{k: c[k] for k in ("clusterProvider", "cluster")},
                        "resources": [{k: r[k] for k in ("GVK", "name")} for r in c["resources"]],
                    }
                    for c in app["clusters"]
                ],
            }
            for app in apps
        ]
        return {"name": found["name"], "apps": items}
    return found


def _cluster(text: str) -> str:
    """Returns `lab/edge-1`; EMCO clients write `lab+edge-1`, and a plus may arrive as a space."""
    for sign in ("+", " "):
        if "/" not in text:
            text = text.replace(sign, "/", 1)
    return text


def _known(request: web.Request, group: str) -> Known:
    """Returns the state of a group; if its record does not exist yet, as it will be when it is made."""
    known = gateway_of(request).view.known(group)
    if known is not None:
        return known
    path = path_in(request, GROUP.path)
    if not resources_of(request).exists(path):
        raise Refused(not_found("/".join(path)))
    resolved = Revision(group=group, revision=1, tenant=path[1], apps=[])
    record = GroupRecord(group=group, revision=1, state="Created", resolved=resolved, origin="v2")
    return Known(record, None, False, None, None)


async def _detail(gateway: Gateway, known: Known) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns the applied objects by cluster and app; nothing before there is a decision."""
    if known.decision is None:
        return {}
    ask = DiffAsk(group=known.record.group)
    reply = await call(gateway.bus, subjects.PATCHER_DIFF, ask, timeout=10, again=ask)
    return {(item["cluster"], item["app"]): item["objects"] for item in reply.get("items", [])}


# --- logical clouds --------------------------------------------------------------------------------------------------


async def act_on_cloud(request: web.Request) -> web.StreamResponse:
    """Accepts an operation on a logical cloud. Groups read it when they begin, so there is nothing to do."""
    path = _cloud(request)
    prefix = "/v2" if request.path.startswith("/v2/") else ""
    url = f"{prefix}/{'/'.join(path)}/status"
    return _accepted({"logicalCloud": path[3], "outcome": "nothing to do", "watch": url}, url)


async def get_cloud_status(request: web.Request) -> web.StreamResponse:
    path = _cloud(request)
    resources = resources_of(request)
    references = [resources.body(p)["spec"] for p in resources.members((*path, "cluster-references"))]
    return json_response(
        {
            "project": path[1],
            "name": path[3],
            "deployedStatus": "Instantiated",
            "readyStatus": "Ready",
            "clusters": [{k: r[k] for k in ("clusterProvider", "cluster")} for r in references],
        }
    )


def _cloud(request: web.Request) -> Path:
    info = request.match_info
    path = ("projects", info["project"], "logical-clouds", info["cloud"])
    if not resources_of(request).exists(path):
        raise Refused(not_found("/".join(path)))
    return path
