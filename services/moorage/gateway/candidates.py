"""The clusters that may take each app, merged and as each controller answers, in the form of lists with counts."""

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
from .responses import answer, bad_parameter

_decode = msgspec.json.Decoder(Answer).decode
_MOST_NAMES = 1000


async def group_candidates(request: web.Request) -> web.StreamResponse:
    known = known_group(request)
    return answer(await candidates(gateway_of(request), known.record.resolved, _names(request)))


async def decision_candidates(request: web.Request) -> web.StreamResponse:
    """Of the group as it is now: controllers are asked again."""
    decision = known_decision(request)
    gateway = gateway_of(request)
    record = gateway.view.record(decision.group)
    assert record is not None, "a decision of a group that was never stored"
    return answer({"decision": decision.id, **await candidates(gateway, record.resolved, _names(request))})


def _names(request: web.Request) -> int:
    text = request.query.get("names", str(_MOST_NAMES))
    if not text.isdigit() or len(text) > 7:
        raise bad_parameter("names", "is a number: how many clusters to name of each set")
    return int(text)


async def candidates(gateway: Gateway, revision: Revision, names: int) -> dict[str, Any]:
    view = gateway.view
    fleet = view.fleet
    asked = {name: c for name, c in sorted(view.controllers.items()) if c.placement}
    longest = max((c.deadline_ms for c in asked.values()), default=500.0)
    ask = Ask(
        id=new_id(),
        group=revision.group,
        revision=revision.revision,
        budget_ms=longest,
        epoch=str(fleet.epoch),
        tenant=revision.tenant,
        apps=revision.apps,
        intents=revision.intents,
        held=existing_placement(revision, fleet, view.ledger).named(revision.apps, fleet),
    )
    replies = await gateway.bus.ask_many(
        {name: (subjects.candidates(name), c.deadline_ms / 1e3) for name, c in asked.items()},
        msgspec.json.encode(ask),
    )
    apps = [app.name for app in revision.apps]
    voices: list[WeightedAnswer] = []
    shown: list[dict[str, Any]] = []
    for name, reply in replies.items():
        item: dict[str, Any] = {"name": name, "outcome": reply.outcome, "tookMs": round(reply.took_ms, 3), "apps": {}}
        if reply.outcome == "answered":
            try:
                said = _decode(reply.data)
                if said.error:
                    raise ValueError(said.error)
                opinion = decode_answer(said, apps, fleet.ids, fleet.size)
            except (msgspec.DecodeError, ValueError) as error:
                item |= {"outcome": "error", "error": str(error)[:300]}
            else:
                voices.append(WeightedAnswer(name, asked[name].weight, opinion))
                item["apps"] = _shown(fleet, revision, opinion.apps, names)
                item["conflicts"] = [
                    {"apps": [apps[a], apps[b]], "clusters": fleet.clusters.named(mask, names)}
                    for (a, b), mask in opinion.conflicts.items()
                ]
                item["rules"] = msgspec.to_builtins(said.rules)
        elif reply.error:
            item["error"] = reply.error
        shown.append(item)
    merged = merge([app.replicas for app in revision.apps], fleet.usable_clusters, voices)
    sets = await asyncio.to_thread(disjoint_sets, merged) if fleet.size > 10_000 else disjoint_sets(merged)
    return {
        "group": revision.group,
        "revision": revision.revision,
        "epoch": str(fleet.epoch),
        "merged": {
            app: [one_set(fleet, merged.replicas[i], sets[i], fleet.known, names)] for i, app in enumerate(apps)
        },
        "controllers": shown,
    }


def _shown(fleet: Fleet, revision: Revision, said: Mapping[int, Any], names: int) -> dict[str, Any]:
    """One controller's sets: `{app: count: allow | deny clusters}`; an app it says nothing about denies nothing."""
    found: dict[str, Any] = {}
    for number, app in enumerate(revision.apps):
        opinion = said.get(number)
        if opinion is None or (opinion.allowed is None and not opinion.groups):
            found[app.name] = [{"count": app.replicas, "mode": "deny", "clusters": []}]
        elif opinion.groups:
            found[app.name] = [one_set(fleet, g.wanted, g.mask, fleet.known, names) for g in opinion.groups]
        else:
            found[app.name] = [one_set(fleet, app.replicas, opinion.allowed, fleet.known, names)]
    return found


def one_set(fleet: Fleet, count: int, mask: Any, whole: Any, names: int) -> dict[str, Any]:
    """Whichever list is shorter: those allowed, or those denied of the whole."""
    allowed, denied = mask & whole, whole & ~mask
    mode, chosen = ("deny", denied) if np.count_nonzero(denied) < np.count_nonzero(allowed) else ("allow", allowed)
    listed = fleet.clusters.named(chosen, names)
    item: dict[str, Any] = {"count": count, "mode": mode, "clusters": sorted(listed)}
    if (more := int(np.count_nonzero(chosen)) - len(listed)) > 0:
        item["more"] = more
    return item
