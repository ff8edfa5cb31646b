"""HTTP handlers that ask the controllers which clusters qualify for each app, and show their answers and the merged result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from moorage.bus import new_id, subjects
from moorage.candidates import WeightedAnswer, decode_answer, disjoint_sets, merge, value_parts
from moorage.fleet import Fleet
from moorage.ledger import existing_placement
from moorage.model.candidates import Answer, Ask
from moorage.model.groups import Revision
from moorage.model.records import DecisionRecord
from moorage.model.replies import Reply

from .groups import known_group
from .middleware import Gateway, gateway_of
from .responses import bad_parameter, json_response

_decode = msgspec.json.Decoder(Answer).decode
_MAX_NAMES = 1000
#: Clusters up to which sets are computed at once.
_QUICK = 10_000


async def get_group_candidates(request: web.Request) -> web.StreamResponse:
    known = known_group(request)
    return json_response(await candidates(gateway_of(request), known.record.resolved, names_of(request)))


def names_of(request: web.Request) -> int:
    text = request.query.get("names", str(_MAX_NAMES))
    if not text.isdigit() or len(text) > 7:
        raise bad_parameter("names", "must be the number of clusters to list for each set")
    return int(text)


async def candidates(gateway: Gateway, revision: Revision, names: int) -> dict[str, Any]:
    view = gateway.view
    fleet = view.fleet
    asked = {name: c for name, c in sorted(view.controllers.items()) if c.placement}
    budget_ms = max((c.deadline_ms for c in asked.values()), default=500.0)
    existing = existing_placement(revision, fleet, view.ledger)
    ask = Ask(
        id=new_id(),
        group=revision.group,
        revision=revision.revision,
        budget_ms=budget_ms,
        epoch=str(fleet.epoch),
        tenant=revision.tenant,
        apps=revision.apps,
        intents=revision.intents,
        held=existing.unchanged_clusters(revision.apps, fleet),
        own=existing.own,
    )
    replies = await gateway.bus.ask_many(
        {name: (subjects.candidates(name), c.deadline_ms / 1e3) for name, c in asked.items()},
        msgspec.json.encode(ask),
    )
    weights = {name: controller.weight for name, controller in asked.items()}
    if fleet.size <= _QUICK:
        return candidates_of(fleet, revision, weights, replies, names)
    return await asyncio.to_thread(candidates_of, fleet, revision, weights, replies, names)


def candidates_of(
    fleet: Fleet, revision: Revision, weights: Mapping[str, float], replies: Mapping[str, Reply], names: int
) -> dict[str, Any]:
    """Shows what each controller said, and what follows from it for each app."""
    apps = [app.name for app in revision.apps]
    answers: list[WeightedAnswer] = []
    items: list[dict[str, Any]] = []
    for name, reply in replies.items():
        item: dict[str, Any] = {"name": name, "outcome": reply.outcome, "tookMs": round(reply.took_ms, 3), "apps": {}}
        if reply.outcome in ("answered", "stale"):
            try:
                raw = _decode(reply.data)
                if raw.error:
                    raise ValueError(raw.error)
                decoded = decode_answer(raw, apps, fleet.ids, fleet.size)
            except (msgspec.DecodeError, ValueError) as error:
                item |= {"outcome": "error", "error": str(error)[:300]}
            else:
                answers.append(WeightedAnswer(name, weights[name], decoded))
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
    sets = disjoint_sets(merged)
    return {
        "group": revision.group,
        "revision": revision.revision,
        "epoch": str(fleet.epoch),
        "merged": {
            app: [candidate_set(fleet, merged.replicas[i], sets[i], fleet.known, names)] for i, app in enumerate(apps)
        },
        "controllers": items,
    }


def choices_of(fleet: Fleet, record: DecisionRecord) -> list[dict[str, Any]]:
    """Shows the choices of clusters that were tried, each app's best clusters with their values."""
    shown: list[dict[str, Any]] = []
    for choice in record.tried:
        apps: dict[str, Any] = {}
        for app, clusters, ranked in zip(record.revision.apps, choice.clusters, choice.ranked, strict=False):
            best = [(fleet.names[cid], value_parts(value)) for cid, value in ranked]
            apps[app.name] = {
                "clusters": [fleet.names[cid] for cid in clusters],
                "best": [
                    {"cluster": name, "stays": parts.stays, "score": parts.score, "tie": parts.tie}
                    for name, parts in best
                ],
            }
        shown.append({"apps": apps, "withoutRoom": [fleet.names[cid] for cid in choice.failed]})
    return shown


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
