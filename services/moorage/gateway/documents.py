"""HTTP handlers that apply and simulate documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from moorage.bus import Bus, new_id, subjects
from moorage.model.attempts import Attempt, Why
from moorage.model.auth import Role
from moorage.model.groups import Decide, GroupRecord
from moorage.model.machines import MACHINE_KINDS
from moorage.model.names import project_of
from moorage.model.problems import (
    ENVELOPE,
    Problem,
    Refused,
    Violation,
    invalid,
    with_defaults,
)
from moorage.model.reasons import Warn
from moorage.model.resource_classes import FLEET_KINDS, RESOURCE_CLASS, FleetObject, fleet_object_key

from .audit import add_target, mark_dry_run, request_id
from .authorization import caller_of, require
from .bus_client import call, fetch
from .classes import explained_document, unsaved_class
from .core.explain import nothing_to_place, simulated
from .document_bodies import read_documents
from .etags import bad_if_match, if_match
from .fleet_commands import apply_fleet
from .groups import document_key
from .middleware import gateway_of
from .responses import bool_parameter, json_response, problem_response

_object = msgspec.json.Decoder(dict[str, Any]).decode


async def apply(request: web.Request) -> web.StreamResponse:
    dry = bool_parameter(request, "dryRun", False)
    if dry:
        mark_dry_run(request)
    require(caller_of(request), _role(dry))  # checked before the body is read
    documents = await read_documents(request)
    if len(documents) == 1:
        return json_response(await _apply(request, documents[0], dry))
    if "If-Match" in request.headers:
        raise bad_if_match("If-Match is allowed for a single document only")
    items: list[Any] = []
    refused: dict[int, Problem] = {}
    for number, document in enumerate(documents):
        try:
            items.append(await _apply(request, document, dry))
        except Refused as refusal:
            refused[number] = refusal.problem
            items.append({"accepted": False, "problem": with_defaults(refusal.problem)})
    if refused:
        return problem_response(_some_refused(refused, len(documents)), items=items)
    return json_response({"items": items})


def _some_refused(refused: dict[int, Problem], total: int) -> Problem:
    """Makes the problem for several documents of which some are refused. `errors` has the violations of all, with the
    document's index in the path."""
    first, problem = next(iter(refused.items()))
    errors = [
        Violation(path=f"[{number}].{error.path}".rstrip("."), code=error.code, message=error.message)
        for number, cause in refused.items()
        for error in cause.errors or [Violation(path="", code=cause.code, message=cause.detail or cause.title)]
    ]
    detail = (
        f"{len(refused)} of {total} documents are refused, the others are accepted; the first refused is [{first}]: "
        f"{problem.detail}"
    )
    return Problem(title="Refused", status=problem.status, code="SomeRefused", detail=detail, errors=errors)


def _role(dry: bool) -> Role:
    return "viewer" if dry else "editor"


async def _apply(request: web.Request, document: dict[str, Any], dry: bool) -> dict[str, Any]:
    gateway = gateway_of(request)
    _check_allowed(request, document, _role(dry))
    _check_no_envelope(document)
    if document.get("kind") == "Fleet":
        if dry:
            message = "dryRun is not supported for a Fleet"
            raise Refused(invalid([Violation(path="kind", code="NoDryRun", message=message)]))
        return {"accepted": True, "name": "fleet", "outcome": "updated", **await apply_fleet(gateway.bus, document)}
    if dry and document.get("kind") in MACHINE_KINDS:
        return {**await call(gateway.bus, subjects.INTENTS_CHECK, document, again=document), "dryRun": True}
    if dry and str(document.get("kind")) in FLEET_KINDS:
        checked = await call(gateway.bus, subjects.INTENTS_CHECK, document, again=document)
        return {**checked, "dryRun": True, **explained_document(request, document)}
    if dry:
        checked, why = await _simulate(gateway.bus, document)
        checked.pop("record", None)
        return {**checked, "dryRun": True, "why": why}
    document = {**document, "cause": request_id(request)}
    if (expected := if_match(request)) is not None:
        document["ifMatch"] = expected
    again = {**document, "again": True}
    reply = await call(gateway.bus, subjects.INTENTS_APPLY, document, timeout=10, again=again)
    if document.get("kind") in MACHINE_KINDS:
        return reply
    if str(document.get("kind")) in FLEET_KINDS:
        meta = document["metadata"]
        key = fleet_object_key(str(document["kind"]), str(meta["name"]), str(meta.get("cluster") or ""))
        await gateway.view.wait_for_fleet_object(key)
        return reply
    await gateway.view.wait_for_group(_group_of_document(document))
    if document.get("kind") != "Application":
        meta = document["metadata"]
        project = str(meta.get("project") or "default")
        await gateway.view.wait_for_document(document_key(str(document["kind"]), project, str(meta["name"])))
    return reply


def _check_no_envelope(document: dict[str, Any]) -> None:
    """Refuses the fields that the gateway itself adds to a document on its way to the intent store."""
    if reserved := document.keys() & {"ifMatch", "again", "unsaved", *ENVELOPE}:
        message = "unknown field"
        raise Refused(invalid([Violation(path=f, code="UnknownField", message=message) for f in sorted(reserved)]))


def _check_allowed(request: web.Request, document: dict[str, Any], role: Role) -> None:
    """Checks the caller's permission for a document that is not validated yet. An intent may name a group of another project;
    that needs a token for both."""
    who = caller_of(request)
    kind = str(document.get("kind"))
    meta, spec = (part if isinstance(part := document.get(name), dict) else {} for name in ("metadata", "spec"))
    project = str(meta.get("project") or "default")
    add_target(request, f"{kind} {meta.get('name')}" if kind in FLEET_KINDS else f"{kind} {project}/{meta.get('name')}")
    of_fleet = kind in FLEET_KINDS or kind in MACHINE_KINDS
    if kind == "Fleet" or (of_fleet and role != "viewer"):
        require(who, "admin")
        return
    if of_fleet:
        require(who, role)
        return
    require(who, role, project)
    if "/" in (group := str(spec.get("group", ""))):
        require(who, role, project_of(group))


def _group_of_document(document: dict[str, Any]) -> str:
    """Returns the group that an accepted document belongs to."""
    meta = document.get("metadata") or {}
    project = meta.get("project") or "default"
    if document.get("kind") == "Application":
        return f"{project}/{meta.get('name')}/v1/default"
    group = str((document.get("spec") or {}).get("group", ""))
    return group if "/" in group else f"{project}/{group}/v1/default"


async def simulate(request: web.Request) -> web.StreamResponse:
    """Returns what `why` would show if the documents were applied. Nothing is stored or claimed."""
    mark_dry_run(request)
    documents = await read_documents(request)
    for document in documents:
        _check_allowed(request, document, "viewer")
        _check_no_envelope(document)
    answers: dict[int, Why | dict[str, Any]] = {}
    classes = [i for i, document in enumerate(documents) if str(document.get("kind")) in FLEET_KINDS]
    for i in classes:  # what others ask for
        answers[i] = await _simulated_object(request, documents[i])
    unsaved = [unsaved_class(documents[i]) for i in classes if documents[i]["kind"] == RESOURCE_CLASS.kind]
    for i, document in enumerate(documents):
        if i not in answers:
            answers[i] = (await _simulate(gateway_of(request).bus, document, unsaved))[1]
    found = [answers[i] for i in range(len(documents))]
    return json_response(found[0] if len(found) == 1 else {"items": found})


async def _simulated_object(request: web.Request, document: dict[str, Any]) -> dict[str, Any]:
    """Returns whether a document of the fleet is valid; of a resource class, what it would select."""
    bus = gateway_of(request).bus
    ask = {**document, "unsaved": True}
    checked = await call(bus, subjects.INTENTS_CHECK, ask, again=ask)
    return {**checked, "dryRun": True, **explained_document(request, document)}


class _Checked(msgspec.Struct):
    group: str
    warnings: list[Warn] = []
    record: GroupRecord | None = None  # None if the group of an intent does not exist yet


async def _simulate(
    bus: Bus, document: dict[str, Any], classes: Sequence[FleetObject] = ()
) -> tuple[dict[str, Any], Why]:
    checked = await fetch(bus, subjects.INTENTS_CHECK, document, again=document)
    found = msgspec.json.decode(checked, type=_Checked)
    record = found.record
    if record is None:
        return _object(checked), nothing_to_place(found.group, found.warnings)
    ask = Decide(id=new_id(), record=record.resolved, classes=list(classes))
    attempt = msgspec.json.decode(await fetch(bus, subjects.MERGER_SIMULATE, ask, timeout=15), type=Attempt)
    return _object(checked), simulated(record, attempt)
