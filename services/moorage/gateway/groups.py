"""HTTP handlers that read groups, applications, intents, decisions and controllers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from moorage.bus import subjects
from moorage.model.controllers import Controller
from moorage.model.desired_state import DiffAsk
from moorage.model.intent_kinds import INTENT_KINDS
from moorage.model.names import project_of, token, untoken
from moorage.model.problems import Refused, Violation, invalid, not_found

from .authorization import caller_of
from .bus_client import call
from .core.explain import Known, application_item, group_item, why
from .core.selectors import parse, selects
from .etags import etag
from .events import group_of
from .middleware import gateway_of
from .read_model import ReadModel
from .responses import bad_parameter, json_response, list_response, page_of

Labels = Callable[[str], Mapping[str, str]]


def select_by_labels(request: web.Request, keys: list[str], labels: Labels) -> list[str]:
    """Returns the keys whose labels match the request's selector."""
    text = request.query.get("labelSelector", "")
    if not text.strip():
        return keys
    try:
        requirements = parse(text)
    except ValueError as error:
        raise bad_parameter("labelSelector", str(error)) from None
    return [key for key in keys if selects(requirements, labels(key))]


def document_key(kind: str, project: str, name: str) -> str:
    """Returns the key of a standalone intent in the documents bucket."""
    return ".".join(token(part) for part in (kind, project, name))


def known_group(request: web.Request) -> Known:
    group = group_of(request)
    known = gateway_of(request).view.known(group)
    if known is None:
        raise Refused(not_found(f"group {group}"))
    return known


def _group_keys(request: web.Request, view: ReadModel) -> list[str]:
    keys = view.groups
    if project := request.query.get("project"):
        keys = [key for key in keys if key.startswith(project + "/")]
    if (who := caller_of(request)).projects:
        keys = [key for key in keys if who.sees(project_of(key))]

    def labels(key: str) -> Mapping[str, str]:
        record = view.record(key)
        return record.labels if record is not None else {}

    return select_by_labels(request, keys, labels)


async def list_groups(request: web.Request) -> web.StreamResponse:
    view = gateway_of(request).view
    page, token = page_of(request, _group_keys(request, view))
    return list_response([group_item(known) for key in page if (known := view.known(key)) is not None], token)


async def get_group(request: web.Request) -> web.StreamResponse:
    known = known_group(request)
    return _versioned(request, group_item(known), known.record.group)


async def explain_group(request: web.Request) -> web.StreamResponse:
    return json_response(why(known_group(request)))


async def diff_group(request: web.Request) -> web.StreamResponse:
    """Returns the patcher's comparison of manifests and applied objects."""
    known = known_group(request)
    ask = DiffAsk(group=known.record.group)
    reply = await call(gateway_of(request).bus, subjects.PATCHER_DIFF, ask, timeout=10, again=ask)
    reply.setdefault("items", [])
    return json_response(reply)


# --- applications ----------------------------------------------------------------------------------------------------


async def list_applications(request: web.Request) -> web.StreamResponse:
    view = gateway_of(request).view
    page, token = page_of(request, _group_keys(request, view))
    items = [view.known(key) for key in page]
    # Groups made from /v2 resources are not Applications.
    return list_response([application_item(k) for k in items if k is not None and not k.record.origin], token)


async def get_application(request: web.Request) -> web.StreamResponse:
    project, name = request.match_info["project"], request.match_info["name"]
    known = gateway_of(request).view.known(f"{project}/{name}/v1/default")
    if known is None:
        raise Refused(not_found(f"application {name} of project {project}"))
    return _versioned(request, application_item(known), known.record.group)


def _versioned(request: web.Request, item: Any, group: str) -> web.Response:
    """Adds an ETag for If-Match. Caches must not use it, because the status changes without a new tag."""
    response = json_response(item)
    response.headers["ETag"] = etag(gateway_of(request).view.revision_of(group))
    response.headers["Cache-Control"] = "no-store"
    return response


# --- standalone intents ----------------------------------------------------------------------------------------------


def intent_kind(view: ReadModel, text: str) -> str:
    """Returns the proper spelling of an intent kind given in any case. Known are built-in and registered kinds, and those of
    stored intents, because a controller may leave before its intents are deleted."""
    kinds = {*INTENT_KINDS, *(kind for controller in view.controllers.values() for kind in controller.kinds)}
    kinds.update(untoken(key.partition(".")[0]) for key in view.documents)
    for kind in kinds:
        if text.lower() in (kind.lower(), kind.lower() + "s"):
            return kind
    message = f"unknown kind {text!r}; known are {', '.join(sorted(kinds))}"
    raise Refused(invalid([Violation(path="kind", code="UnknownKind", message=message)]))


async def list_intents(request: web.Request) -> web.StreamResponse:
    view = gateway_of(request).view
    keys = sorted(view.documents)
    if kind := request.query.get("kind"):
        prefix = token(intent_kind(view, kind)) + "."
        keys = [key for key in keys if key.startswith(prefix)]
    if project := request.query.get("project"):
        keys = [key for key in keys if key.split(".")[1] == token(project)]
    if (who := caller_of(request)).projects:
        keys = [key for key in keys if who.sees(untoken(key.split(".")[1]))]
    keys = select_by_labels(request, keys, lambda key: view.documents[key].get("metadata", {}).get("labels") or {})
    page, more = page_of(request, keys)
    return list_response([view.documents[key] for key in page], more)


async def get_intent(request: web.Request) -> web.StreamResponse:
    view, info = gateway_of(request).view, request.match_info
    kind = intent_kind(view, info["kind"])
    key = document_key(kind, info["project"], info["name"])
    document = view.documents.get(key)
    if document is None:
        raise Refused(not_found(f"{kind} {info['name']} of project {info['project']}"))
    response = json_response(document)
    response.headers["ETag"] = etag(view.document_revisions[key])
    return response


# --- controllers -----------------------------------------------------------------------------------------------------


def controller_item(found: Controller) -> dict[str, Any]:
    return {
        "name": found.name,
        "deadlineMs": found.deadline_ms,
        "policy": found.policy,
        "weight": found.weight,
        "placement": found.placement,
        "actions": found.actions,
        "kinds": found.kinds,
        "concerns": found.concerns,
        "actionConcerns": found.action_concerns,
    }


async def list_controllers(request: web.Request) -> web.StreamResponse:
    view = gateway_of(request).view
    page, more = page_of(request, sorted(view.controllers))
    return list_response([controller_item(view.controllers[name]) for name in page], more)


async def get_controller(request: web.Request) -> web.StreamResponse:
    view, name = gateway_of(request).view, request.match_info["name"]
    if name not in view.controllers:
        raise Refused(not_found(f"controller {name}"))
    return json_response(controller_item(view.controllers[name]))
