"""HTTP handlers of decisions: current and past ones, the answers that led to them, and their replay."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiohttp import web

from moorage.bus import subjects
from moorage.fleet import ExcerptFleet, Malformed
from moorage.ledger.records import excerpt_of
from moorage.model.claims import Decision, decision_document
from moorage.model.names import project_of
from moorage.model.problems import Problem, Refused, not_found
from moorage.model.records import DecisionRecord, ReplayAsk
from moorage.model.replies import Reply
from moorage.parsing import format_amount
from moorage.podspec import is_host_port, ports_in
from moorage.podspec.slot_views import readable_parts

from .authorization import caller_of, require
from .bus_client import call
from .candidates import candidates, candidates_of, choices_of, names_of
from .core.history import EndedDecision, RecordedDecision
from .decision_records import no_record
from .middleware import Gateway, gateway_of
from .read_model import ReadModel
from .responses import bool_parameter, json_response, list_response, page_of


class _Found(NamedTuple):
    """A decision that exists or existed: as the ledger has it, as the history has it, or both."""

    standing: Decision | None
    recorded: RecordedDecision | None


def _decision_item(decision: Decision, seq: int) -> dict[str, Any]:
    item = decision_document(decision)
    item["seq"] = seq
    for claim in item.setdefault("claims", []):
        for slot in claim["slots"]:
            slot.setdefault("count", 1)
            if ports := ports_in(slot.get("resources", {})):
                slot["hostPorts"] = ports
            if parts := slot.get("parts"):
                slot["parts"] = readable_parts(parts)
            slot["resources"] = {
                name: format_amount(name, amount)
                for name, amount in slot.get("resources", {}).items()
                if not is_host_port(name)
            }
    return item


async def _standing_item(view: ReadModel, decision: Decision) -> dict[str, Any]:
    return _decision_item(decision, await view.seq_of(decision.group, decision.id))


def _history_fields(item: EndedDecision) -> dict[str, Any]:
    fields = {
        "outcome": item.outcome,
        "decided": item.past.decided,
        "ended": item.ended,
        "replacedBy": item.replaced_by,
        "recorded": item.past.recorded,
        "apps": item.past.apps,
        "claimCount": item.past.claims,
    }
    return {name: value for name, value in fields.items() if value != ""}


def _past_item(item: EndedDecision) -> dict[str, Any]:
    past = item.past
    head = {"id": past.id, "group": past.group, "revision": past.revision, "seq": past.seq, "claims": []}
    return head | _history_fields(item)


async def list_decisions(request: web.Request) -> web.StreamResponse:
    """Lists the current decisions by group, or with `all` also the past ones, in the order of the log."""
    view = gateway_of(request).view
    if bool_parameter(request, "all", False):
        return await _list_all(request)
    standing = view.ledger.standing
    if group := request.query.get("group"):
        keys = [group] if group in standing else []
    else:
        keys = sorted(standing)
    if (who := caller_of(request)).projects:
        keys = [key for key in keys if who.sees(project_of(key))]
    page, more = page_of(request, keys)
    return list_response([await _standing_item(view, standing[key]) for key in page if key in standing], more)


async def _list_all(request: web.Request) -> web.StreamResponse:
    gateway, who = gateway_of(request), caller_of(request)
    history, standing = await gateway.records.history(), gateway.view.ledger.standing
    group = request.query.get("group", "")
    items = {
        f"{item.past.seq:020}/{item.past.id}": _past_item(item)
        for item in history.items(standing, group)
        if who.sees(project_of(item.past.group))
    }
    listed = {item["id"] for item in items.values()}
    for decision in list(standing.values()):
        # The history may have begun after it, or have lost it.
        if decision.id in listed or (group and decision.group != group) or not who.sees(project_of(decision.group)):
            continue
        item = await _standing_item(gateway.view, decision) | {"outcome": "Current"}
        items[f"{item['seq']:020}/{decision.id}"] = item
    page, more = page_of(request, sorted(items))
    return list_response([items[key] for key in page], more)


async def _find(request: web.Request, *, wait: bool = False) -> _Found:
    """Returns a current or past decision that the caller may see."""
    ident, gateway = request.match_info["id"], gateway_of(request)
    standing = next((d for d in gateway.view.ledger.standing.values() if d.id == ident), None)
    if standing is not None:
        require(caller_of(request), "viewer", project_of(standing.group))
        if not wait:
            return _Found(standing, None)
    recorded = await gateway.records.find(ident, wait=standing is not None)
    if recorded is not None:
        require(caller_of(request), "viewer", project_of(recorded.past.group))
    elif standing is None:
        raise Refused(not_found(f"decision {ident}"))
    return _Found(standing, recorded)


async def get_decision(request: web.Request) -> web.StreamResponse:
    gateway, found = gateway_of(request), await _find(request)
    if found.standing is not None:
        return json_response(await _standing_item(gateway.view, found.standing))
    assert found.recorded is not None, "one of both is there"
    past = found.recorded.past
    history = await gateway.records.history()
    (ended,) = (i for i in history.items(gateway.view.ledger.standing, past.group) if i.past.id == past.id)
    record = await gateway.records.record(found.recorded)
    if record is None:
        return json_response(_past_item(ended))
    return json_response(_decision_item(record[0].decision, past.seq) | _history_fields(ended))


async def replay_decision(request: web.Request) -> web.StreamResponse:
    """Returns what a merger finds when it decides again from the record."""
    gateway, found = gateway_of(request), await _find(request, wait=True)
    if found.recorded is None or not found.recorded.records:
        raise no_record(found.recorded, request.match_info["id"])
    ask = ReplayAsk(decision=found.recorded.past.id, records=found.recorded.records)
    try:
        reply = await call(gateway.bus, subjects.MERGER_REPLAY, ask, timeout=30, again=ask, patience=10)
    except Refused as refused:
        if refused.problem.code == "NotFound":
            raise no_record(found.recorded, ask.decision) from None
        raise
    for name in ("differences", "unsure"):
        reply.setdefault(name, [])
    return json_response(reply)


async def get_decision_candidates(request: web.Request) -> web.StreamResponse:
    """Returns the answers that led to a decision. If a current decision has no record, the controllers are asked again."""
    names, gateway = names_of(request), gateway_of(request)
    found = await _find(request, wait=True)
    kept = await gateway.records.record(found.recorded) if found.recorded is not None else None
    if kept is not None:
        return json_response(_recorded_candidates(gateway, *kept, names))
    if found.standing is None:
        raise no_record(found.recorded, request.match_info["id"])
    record = gateway.view.record(found.standing.group)
    assert record is not None, "a decision of a group that was never stored"
    shown = await candidates(gateway, record.resolved, names)
    return json_response({"decision": found.standing.id, "recorded": False, **shown})


def _recorded_candidates(
    gateway: Gateway, record: DecisionRecord, answers: dict[str, bytes], names: int
) -> dict[str, Any]:
    try:
        fleet = ExcerptFleet(excerpt_of(record))
    except (Malformed, ValueError) as error:
        detail = f"the record of decision {record.decision.id} cannot be read: {error}"
        raise Refused(Problem(title="Damaged", status=500, code="Damaged", detail=detail)) from error
    fleet.complete_names(gateway.view.fleet.names)
    replies = {
        name: Reply("stale", answers.get(reply.stale, b""), reply.took_ms, reply.error)
        if reply.stale and reply.outcome != "answered"
        else Reply(reply.outcome, answers.get(reply.answer, b""), reply.took_ms, reply.error)
        for name, reply in record.replies.items()
    }
    weights = {controller.name: controller.weight for controller in record.controllers}
    shown = candidates_of(fleet, record.revision, weights, replies, names)
    head = {"decision": record.decision.id, "recorded": True}
    return head | shown | {"epoch": record.decision.epoch, "choices": choices_of(fleet, record)}
