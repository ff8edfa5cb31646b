"""HTTP handlers that ask the controllers which clusters qualify for each app, and show their answers and the merged result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from moorage.bus import new_id, subjects
from moorage.candidates import WeightedAnswer, decode_answer, disjoint_sets, merge
from moorage.fleet import Fleet
from moorage.ledger import existing_placement
from moorage.model.candidates import Answer, Ask
from moorage.model.groups import Revision

from .groups import known_decision, known_group
from .middleware import Gateway, gateway_of
from .responses import bad_parameter, json_response

_decode = msgspec.json.Decoder(Answer).decode
_MAX_NAMES = 1000


async def get_group_candidates(request: web.Request) -> web.StreamResponse:
    known = known_group(request)
    return json_response(await candidates(gateway_of(request), known.record.resolved, _names(request)))


async def get_decision_candidates(request: web.Request) -> web.StreamResponse:
    """Returns the candidates of the decision's group as it is now; the controllers are asked again."""
    decision = known_decision(request)
    gateway = gateway_of(request)
    record = gateway.view.record(decision.group)
    assert record is not None, "a decision of a group that was never stored"
    return json_response({"decision": decision.id, **await candidates(gateway, record.resolved, _names(request))})


def _names(request: web.Request) -> int:
    text = request.query.get("names", str(_MAX_NAMES))
    if not text.isdigit() or len(text) > 7:
        raise bad_parameter("names", "must be the number of clusters to list for each set")
    return int(text)


async def candidates(gateway: Gateway, revision: Revision, names: int) -> dict[str, Any]:
    view = gateway.view
    fleet = view.fleet
    asked = {name: c for name, c in sorted(view.controllers.items()) if c.placement}
    budget_ms = max((c.deadline_ms for c in asked.values()), default=500.0)
    ask = Ask(
        id=new_id(),
        group=revision.group,
        revision=revision.revision,
        budget_ms=budget_ms,
        epoch=str(fleet.epoch),
        tenant=revision.tenant,
        apps=revision.apps,
        intents=revision.intents,
        held=existing_placement(revision, fleet, view.ledger).unchanged_clusters(revision.apps, fleet),
    )
    replies = await gateway.bus.ask_many(
        {name: (subjects.candidates(name), c.deadline_ms / 1e3) for name, c in asked.items()},
        msgspec.json.encode(ask),
    )
    apps = [app.name for app in revision.apps]
    answers: list[WeightedAnswer] = []
    items: list[dict[str, Any]] = []
    for name, reply in replies.items():
        item: dict[str, Any] = {"name": name, "outcome": reply.outcome, "tookMs": round(reply.took_ms, 3), "apps": {}}
        if reply.outcome == "answered":
            try:
                raw = _decode(reply.data)
                if raw.error:
                    raise ValueError(raw.error)
                decoded = decode_answer(raw, apps, fleet.ids, fleet.size)
            except (msgspec.DecodeError, ValueError) as error:
                item |= {"outcome": "error", "error": str(error)[:300]}
            else:
                answers.append(WeightedAnswer(name, asked[name].weight, decoded))
                item["apps"] = _candidate_sets(fleet, revision, decoded.apps, names)
                item["conflicts"] = [
                    {"apps": [apps[a], apps[b]], "clusters": fleet.clusters.named(mask, names)}
                    for (a, b), mask in decoded.conflicts.items()
                ]
                item["rules"] = msgspec.to_builtins(raw.rules)
        elif reply.error:
            item["error"] = reply.error
        items.append(item)
    merged = merge([app.replicas for app in revision.apps], fleet.usable_clusters, answers, fleet.known)
    sets = await asyncio.to_thread(disjoint_sets, merged) if fleet.size > 10_000 else disjoint_sets(merged)
    return {
        "group": revision.group,
        "revision": revision.revision,
        "epoch": str(fleet.epoch),
        "merged": {
            app: [candidate_set(fleet, merged.replicas[i], sets[i], fleet.known, names)] for i, app in enumerate(apps)
        },
        "controllers": items,
    }


def _candidate_sets(fleet: Fleet, revision: Revision, answers: Mapping[int, Any], names: int) -> dict[str, Any]:
    """Returns one controller's candidate sets by app. A controller that does not mention an app denies no cluster for it."""
    found: dict[str, Any] = {}
    for number, app in enumerate(revision.apps):
        answer = answers.get(number)
        if answer is None or (answer.allowed is None and not answer.groups):
            found[app.name] = [{"count": app.replicas, "mode": "deny", "clusters": []}]
        elif answer.groups:
            found[app.name] = [candidate_set(fleet, g.wanted, g.mask, fleet.known, names) for g in answer.groups]
        else:
            found[app.name] = [candidate_set(fleet, app.replicas, answer.allowed, fleet.known, names)]
    return found


def candidate_set(fleet: Fleet, count: int, mask: Any, universe: Any, names: int) -> dict[str, Any]:
    """Lists the allowed clusters or the denied ones, whichever are fewer."""
    allowed, denied = mask & universe, universe & ~mask
    mode, chosen = ("deny", denied) if np.count_nonzero(denied) < np.count_nonzero(allowed) else ("allow", allowed)
    listed = fleet.clusters.named(chosen, names)
    item: dict[str, Any] = {"count": count, "mode": mode, "clusters": sorted(listed)}
    if (more := int(np.count_nonzero(chosen)) - len(listed)) > 0:
        item["more"] = more
    return item
