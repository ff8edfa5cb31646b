"""HTTP handlers for probes, Prometheus and `moorage check`: the health of the gateway and of the whole mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from moorage.bus import FoundWorker, find_workers, new_id, subjects
from moorage.ledger.metrics import follower_metrics
from moorage.model.auth import Caller
from moorage.model.candidates import Ask
from moorage.model.names import project_of
from moorage.telemetry import MetricValue

from .authorization import caller_of
from .clusters import claims_on, known_cluster
from .core.explain import has_pending_revision
from .middleware import Gateway, gateway_of
from .read_model import ReadModel
from .responses import json_response, list_response, problem_response, unavailable

#: Seconds until workers and controllers must have answered a ping.
_PING_SECONDS = 0.6
#: Maximum number of unhealthy items in a list; their total is returned beside it.
_MAX_ITEMS = 100


async def livez(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.StreamResponse:
    """Answers 200 if the gateway can show groups and pass documents on. A missing fleet is mentioned, but not an error."""
    gateway = gateway_of(request)
    if not gateway.ready or not gateway.bus.nc.is_connected:
        return problem_response(unavailable("not connected to NATS, or the stores are still being mirrored"))
    missing = gateway.view.missing()
    return web.Response(text="ok\n" if not missing else f"ok, without {', '.join(missing)}\n")


async def get_metrics(request: web.Request) -> web.StreamResponse:
    body = generate_latest(gateway_of(request).registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def view_metrics(gateway: Gateway) -> Iterable[MetricValue]:
    """Yields metrics of the mirrors and of event streams at collection time."""
    view = gateway.view
    yield from follower_metrics(view.follower, view.ledger)
    yield MetricValue(
        "moorage_event_listeners",
        "Open event streams",
        gateway.stream.listeners + gateway.rejected.listeners,
    )


async def get_health(request: web.Request) -> web.StreamResponse:
    """Returns the workers and controllers that answer, stale clusters, and groups on stale or deleted clusters."""
    gateway = gateway_of(request)
    workers, controllers, records = await asyncio.gather(
        find_workers(gateway.bus, _PING_SECONDS, partial(_all_answered, gateway)),
        _controllers(gateway),
        gateway.records.state(),
    )
    unrecorded = sum(worker.unrecorded for worker in workers)
    fleet = gateway.view.fleet
    stale = [fleet.names[cid] for cid in range(fleet.size) if fleet.known[cid] and fleet.state(cid) == "Stale"]
    away = _away(gateway, set(stale), caller_of(request))
    return json_response(
        {
            "expected": [name for name, spec in gateway.mesh.workers.items() if not spec.optional],
            "workers": [
                {
                    "kind": w.kind,
                    "id": w.id,
                    "version": w.version,
                    "pid": w.pid,
                    "ok": w.ok,
                    "missing": w.missing,
                    "role": w.role,
                    "behind": 0 if w.seq is None else max(0, gateway.view.ledger.seq - w.seq),
                }
                for w in workers
            ],
            "controllers": controllers,
            "stale": sorted(stale)[:_MAX_ITEMS],
            "staleCount": len(stale),
            "away": away[:_MAX_ITEMS],
            "awayCount": len(away),
            "records": {"kept": False, "lost": unrecorded}
            if records is None
            else {"kept": True, "lost": unrecorded, "bytes": records.bytes, "since": records.since},
        }
    )


def _away(gateway: Gateway, stale: set[str], who: Caller) -> list[dict[str, Any]]:
    """Returns groups with claims on clusters that are stale or no longer in the fleet."""
    view = gateway.view
    if not view.follower.healthy:  # the gateway itself gets no reports
        return []
    found: dict[str, dict[str, Any]] = {}
    for cluster in view.ledger.by_cluster:
        gone = not known_cluster(view.fleet, cluster)
        if not gone and cluster not in stale:
            continue
        for group in {active.group for active in claims_on(view, cluster)}:
            if who.sees(project_of(group)):
                item = found.get(group) or found.setdefault(group, _away_item(view, group))
                item["gone" if gone else "stale"].append(cluster)
    return [found[group] for group in sorted(found)]


def _away_item(view: ReadModel, group: str) -> dict[str, Any]:
    known = view.known(group)
    state, pending = ("", False) if known is None else (known.record.state, has_pending_revision(known))
    return {"group": group, "state": state, "stale": [], "gone": [], "pending": pending}


def _all_answered(gateway: Gateway, found: list[FoundWorker]) -> bool:
    return gateway.mesh.workers.keys() <= {worker.kind for worker in found}


async def _controllers(gateway: Gateway) -> list[dict[str, Any]]:
    """Sends every placement controller an empty request; any answer shows that it is alive."""
    view = gateway.view
    asked = {name: c for name, c in view.controllers.items() if c.placement}
    ask = Ask(
        id=new_id(), group="", revision=0, budget_ms=_PING_SECONDS * 1e3, epoch="", tenant="", apps=[], intents=[]
    )
    replies = await gateway.bus.ask_many(
        {name: (subjects.candidates(name), _PING_SECONDS) for name in asked}, msgspec.json.encode(ask)
    )
    return [
        {"name": name, "policy": asked[name].policy, "answers": replies[name].outcome == "answered"}
        for name in sorted(asked)
    ]


async def list_subjects(request: web.Request) -> web.StreamResponse:
    return list_response(
        [
            {
                "subject": row.pattern,
                "payload": row.payload,
                "request": row.request,
                "publish": row.publishers,
                "subscribe": row.subscribers,
                "about": row.description,
            }
            for row in gateway_of(request).mesh.subjects
        ]
    )
