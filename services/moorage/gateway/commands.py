"""What changes something: documents in, the verbs of a group's life, the registry, and simulated clusters."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from aiohttp import web

from moorage.bus import Bus, new_id, subjects
from moorage.model.attempts import Attempt, Why
from moorage.model.auth import Role
from moorage.model.controllers import Controller
from moorage.model.groups import Decide, GroupRecord
from moorage.model.names import token
from moorage.model.problems import (
    ENVELOPE,
    Problem,
    Refused,
    Violation,
    invalid,
    not_found,
    unknown_fields,
    whole,
    wrong_state,
)
from moorage.model.reasons import Warn
from moorage.parsing import yaml_json

from .audit import changes_nothing, concerns, id_of
from .authorization import must, who_of
from .bus_client import call, fetch
from .clusters import cluster_of, held_on, known_cluster
from .core.explain import nothing_to_place, simulated
from .core.schemas import ClusterEdit, ControllerEdit, Misbehaviour
from .etags import bad_match, expected_of
from .events import group_of
from .groups import controller_item, intent_kind, known_group, project_of
from .middleware import gateway_of
from .rate_limits import BODY_LIMIT
from .responses import answer, encode, flag_of, refuse

VERBS = ("approve", "instantiate", "update", "redecide", "migrate", "rollback", "stop", "terminate")
_ORDER = {"revision", "target"}  # what rollback and migrate are told
_object = msgspec.json.Decoder(dict[str, Any]).decode


async def documents_of(request: web.Request) -> list[dict[str, Any]]:
    """The documents of a body: JSON, an array of them, or YAML with one or several."""
    raw = await request.read()
    found = yaml_json.parse_documents(raw, allow_yaml="yaml" in request.content_type, max_bytes=BODY_LIMIT)
    if len(found) == 1:
        if isinstance(found[0], list) and found[0]:
            found = found[0]
        elif len(raw) > yaml_json.MAX_BYTES:
            raise yaml_json.too_large(len(raw), yaml_json.MAX_BYTES)
    many = [yaml_json.require_object(one) for one in found]
    for one in many:
        one.pop("status", None)  # what `get` shows and nobody writes
    return many


async def apply(request: web.Request) -> web.StreamResponse:
    dry = flag_of(request, "dryRun", False)
    if dry:
        changes_nothing(request)
    must(who_of(request), _role(dry))  # before the body costs anything
    documents = await documents_of(request)
    if len(documents) == 1:
        return answer(await _apply(request, documents[0], dry))
    if "If-Match" in request.headers:
        raise bad_match("If-Match is about one document; these are several")
    items: list[Any] = []
    refused: dict[int, Problem] = {}
    for number, document in enumerate(documents):
        try:
            items.append(await _apply(request, document, dry))
        except Refused as refusal:
            refused[number] = refusal.problem
            items.append({"accepted": False, "problem": whole(refusal.problem)})
    return refuse(_some_refused(refused, len(documents)), items=items) if refused else answer({"items": items})


def _some_refused(refused: dict[int, Problem], of: int) -> Problem:
    """Of several documents; the others are accepted. `errors` has those of all, by the document's place."""
    first, problem = next(iter(refused.items()))
    errors = [
        Violation(path=f"[{number}].{error.path}".rstrip("."), code=error.code, message=error.message)
        for number, one in refused.items()
        for error in one.errors or [Violation(path="", code=one.code, message=one.detail or one.title)]
    ]
    detail = (
        f"{len(refused)} of {of} documents are refused, the others accepted; the first, [{first}]: {problem.detail}"
    )
    return Problem(title="Refused", status=problem.status, code="SomeRefused", detail=detail, errors=errors)


def _role(dry: bool) -> Role:
    return "viewer" if dry else "editor"


async def _apply(request: web.Request, document: dict[str, Any], dry: bool) -> dict[str, Any]:
    gateway = gateway_of(request)
    _allowed(request, document, _role(dry))
    _nothing_of_ours(document)
    if document.get("kind") == "Fleet":
        if dry:
            message = "a fleet is filled, not decided: there is nothing to try"
            raise Refused(invalid([Violation(path="kind", code="NoDryRun", message=message)]))
        return {"accepted": True, "name": "fleet", "outcome": "updated", **await _fleet(gateway.bus, document)}
    if dry:
        checked, why = await _simulate(gateway.bus, document)
        checked.pop("record", None)
        return {**checked, "dryRun": True, "why": why}
    document = {**document, "cause": id_of(request)}
    if (expected := expected_of(request)) is not None:
        document["ifMatch"] = expected
    again = {**document, "again": True}
    reply = await call(gateway.bus, subjects.INTENTS_APPLY, document, timeout=10, again=again)
    await gateway.view.caught_up(_group_named(document))
    if document.get("kind") != "Application":
        meta = document["metadata"]
        project = str(meta.get("project") or "default")
        await gateway.view.caught_up_document(_document_key(str(document["kind"]), project, str(meta["name"])))
    return reply


def _nothing_of_ours(document: dict[str, Any]) -> None:
    """What travels on beside a document is no field of any."""
    if own := document.keys() & {"ifMatch", "again", *ENVELOPE}:
        message = "unknown field"
        raise Refused(invalid([Violation(path=f, code="UnknownField", message=message) for f in sorted(own)]))


def _allowed(request: web.Request, document: dict[str, Any], role: Role) -> None:
    """Before anybody has looked whether the document makes sense, so nothing is assumed of it. An intent of one project
    may name a group of another: it takes a token that is good for both."""
    who = who_of(request)
    kind = str(document.get("kind"))
    meta, spec = (part if isinstance(part := document.get(name), dict) else {} for name in ("metadata", "spec"))
    project = str(meta.get("project") or "default")
    concerns(request, f"{kind} {project}/{meta.get('name')}")
    if kind == "Fleet":
        must(who, "admin")
        return
    must(who, role, project)
    if "/" in (group := str(spec.get("group", ""))):
        must(who, role, project_of(group))


def _group_named(document: dict[str, Any]) -> str:
    """The group that an accepted document is about."""
    meta = document.get("metadata") or {}
    project = meta.get("project") or "default"
    if document.get("kind") == "Application":
        return f"{project}/{meta.get('name')}/v1/default"
    group = str((document.get("spec") or {}).get("group", ""))
    return group if "/" in group else f"{project}/{group}/v1/default"


async def simulate(request: web.Request) -> web.StreamResponse:
    """As `why` would answer if this were applied; nothing is stored or claimed."""
    changes_nothing(request)
    documents = await documents_of(request)
    for document in documents:
        _allowed(request, document, "viewer")
        _nothing_of_ours(document)
    found = [(await _simulate(gateway_of(request).bus, document))[1] for document in documents]
    return answer(found[0] if len(found) == 1 else {"items": found})


class _Checked(msgspec.Struct):
    group: str
    warnings: list[Warn] = []
    record: GroupRecord | None = None  # none where the group of an intent is not there yet


async def _simulate(bus: Bus, document: dict[str, Any]) -> tuple[dict[str, Any], Why]:
    checked = await fetch(bus, subjects.INTENTS_CHECK, document, again=document)
    found = msgspec.json.decode(checked, type=_Checked)
    record = found.record
    if record is None:
        return _object(checked), nothing_to_place(found.group, found.warnings)
    ask = Decide(id=new_id(), record=record.resolved)
    attempt = msgspec.json.decode(await fetch(bus, subjects.MERGER_SIMULATE, ask, timeout=15), type=Attempt)
    return _object(checked), simulated(record, attempt)


async def act(request: web.Request) -> web.StreamResponse:
    gateway, group, verb = gateway_of(request), group_of(request), request.match_info["verb"]
    if verb not in VERBS:
        raise Refused(not_found(f"the operation {verb} ({', '.join(VERBS)} do)"))
    if gateway.view.record(group) is None:
        raise Refused(not_found(f"group {group}"))
    raw = await request.read()
    said = _object(raw) if raw.strip() else {}
    if errors := unknown_fields(said, _ORDER):
        raise Refused(invalid(errors))
    if "/" in (target := str(said.get("target", ""))):
        must(who_of(request), "editor", project_of(target))
    order = {**said, "group": group, "verb": verb, "cause": id_of(request)}
    again = {**order, "repeat": True}
    reply = await call(gateway.bus, subjects.INTENTS_ACT, order, timeout=60, again=again, patience=3)
    await gateway.view.caught_up(group)
    return answer({"group": group, **reply}, 202)


async def patch_cluster(request: web.Request) -> web.StreamResponse:
    """What an operator says about a cluster: that nothing new goes there, or labels of its own."""
    gateway, info = gateway_of(request), request.match_info
    cluster = f"{info['provider']}/{info['name']}"
    edit = msgspec.json.decode(await request.read(), type=ClusterEdit)
    body: dict[str, Any] = {"cluster": cluster, "cause": id_of(request)}
    if edit.cordoned is not None:
        body["cordoned"] = edit.cordoned
    if edit.labels is not None:
        body["labels"] = edit.labels
    return answer({"id": cluster, **await call(gateway.bus, subjects.CLUSTERS_SET, body, again=body)})


# --- deleting --------------------------------------------------------------------------------------------------------


async def delete_cluster(request: web.Request) -> web.StreamResponse:
    """A dead cluster is forgotten. Claims that count there are no reason to keep it where somebody says that nothing runs
    there any more: what was being taken away is gone then, and what stood there is decided anew."""
    gateway, cluster = gateway_of(request), cluster_of(request)
    held = held_on(gateway.view, cluster)
    if held and not flag_of(request, "abandonClaims", False):
        groups = sorted({one.group for one in held})
        some = ", ".join(groups[:5]) + (f" and {len(groups) - 5} more" if len(groups) > 5 else "")
        detail = (
            f"claims of {some} count on {cluster}, and what runs there is not known; where nothing does, "
            f"`moorage delete cluster {cluster} --abandon-claims` (abandonClaims=true) has them decided anew"
        )
        raise Refused(wrong_state(detail))
    order = {"cluster": cluster, "forget": True, "cause": id_of(request)}
    await call(gateway.bus, subjects.CLUSTERS_SET, order, again=order)
    for group in sorted({one.group for one in held if not one.withdrawn}):
        step = {"group": group, "verb": "redecide", "cause": id_of(request)}
        with contextlib.suppress(Refused):  # it ended meanwhile, or is stopped: then nothing is to be decided
            await call(gateway.bus, subjects.INTENTS_ACT, step, again={**step, "repeat": True})
    for _ in range(100):  # until it is seen here, so that who asked does not find it
        if not known_cluster(gateway.view.fleet, cluster):
            break
        await asyncio.sleep(0.01)
    return web.Response(status=204)


async def delete_group(request: web.Request) -> web.StreamResponse:
    return await _delete(request, known_group(request).record.group)


async def delete_application(request: web.Request) -> web.StreamResponse:
    info = request.match_info
    group = f"{info['project']}/{info['name']}/v1/default"
    if gateway_of(request).view.record(group) is None:
        raise Refused(not_found(f"application {info['name']} of project {info['project']}"))
    return await _delete(request, group)


async def _delete(request: web.Request, group: str) -> web.StreamResponse:
    """What runs is terminated first and removed once it is gone, by the intent store, whatever becomes of us; asking again
    while that lasts changes nothing."""
    gateway = gateway_of(request)
    order: dict[str, Any] = {"group": group, "verb": "leave", "cause": id_of(request)}
    if (expected := expected_of(request)) is not None:
        order["ifMatch"] = expected
    try:
        done = await call(gateway.bus, subjects.INTENTS_ACT, order, again=order)
    except Refused as refusal:
        if refusal.problem.status != 404:
            raise
        done = {"outcome": "deleted"}  # it was here a moment ago, and now is gone
    await gateway.view.caught_up(group)
    if done["outcome"] == "deleted":
        return web.Response(status=204)
    return answer({"group": group, "phase": "Terminating"}, 202)


def _document_key(kind: str, project: str, name: str) -> str:
    return ".".join(token(part) for part in (kind, project, name))


async def delete_intent(request: web.Request) -> web.StreamResponse:
    gateway, info = gateway_of(request), request.match_info
    kind = intent_kind(gateway.view, info["kind"])
    body: dict[str, Any] = {
        "kind": kind,
        "project": info["project"],
        "name": info["name"],
        "cause": id_of(request),
    }
    if (expected := expected_of(request)) is not None:
        body["ifMatch"] = expected
    await call(gateway.bus, subjects.INTENTS_DELETE, body, again={**body, "again": True})
    await gateway.view.caught_up_document(_document_key(kind, info["project"], info["name"]))
    return web.Response(status=204)


# --- the registry ----------------------------------------------------------------------------------------------------


async def put_controller(request: web.Request) -> web.StreamResponse:
    gateway, name = gateway_of(request), request.match_info["name"]
    edit = msgspec.json.decode(await request.read(), type=ControllerEdit)
    if edit.name not in (None, name):
        message = f"is {edit.name!r}, the path says {name!r}"
        raise Refused(invalid([Violation(path="name", code="NameMismatch", message=message)]))
    concerns(request, f"controller {name}")
    body = {**msgspec.to_builtins(edit), "name": name, "cause": id_of(request)}
    reply = msgspec.convert(await call(gateway.bus, subjects.CONTROLLERS_SET, body, again=body), _Set)
    for _ in range(100):  # until it is mirrored, so that who wrote can read it
        if gateway.view.controllers.get(name) == reply.controller:
            break
        await asyncio.sleep(0.01)
    return web.Response(status=204) if reply.controller is None else answer(controller_item(reply.controller))


class _Set(msgspec.Struct):
    controller: Controller | None = None


# --- simulated clusters ----------------------------------------------------------------------------------------------


async def _fleet(bus: Bus, document: dict[str, Any]) -> dict[str, Any]:
    return await call(bus, subjects.SIM_APPLY, encode(document), timeout=600)


async def put_fleet(request: web.Request) -> web.StreamResponse:
    documents = await documents_of(request)
    if len(documents) != 1:
        raise Refused(wrong_state("a fleet is one document"))
    return answer(await _fleet(gateway_of(request).bus, documents[0]))


async def sim_clusters(request: web.Request) -> web.StreamResponse:
    return answer(await call(gateway_of(request).bus, subjects.SIM_LIST, {}))


async def fault(request: web.Request) -> web.StreamResponse:
    info = request.match_info
    body = msgspec.to_builtins(msgspec.json.decode(await request.read(), type=Misbehaviour))
    body["cluster"] = f"{info['provider']}/{info['name']}"
    return answer(await call(gateway_of(request).bus, subjects.SIM_FAULT, body))
