"""Whether we and all others are well: for load balancers, for Prometheus, and for `moorage check`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from moorage.bus import new_id, subjects
from moorage.ledger.metrics import followed
from moorage.model.auth import Caller
from moorage.model.candidates import Ask
from moorage.telemetry import MetricValue

from .authorization import who_of
from .clusters import held_on, known_cluster
from .groups import project_of
from .middleware import Gateway, gateway_of
from .responses import answer, listed, refuse, unavailable

#: How long the others get to say that they are there.
_PATIENCE = 0.6
#: So many are named of what is not well; how many there are is said, too.
_MOST = 100


async def livez(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.StreamResponse:
    """Ready = we can show groups and pass on documents. A fleet that is away is said, and does not keep us away."""
    gateway = gateway_of(request)
    if not gateway.ready or not gateway.bus.nc.is_connected:
        return refuse(unavailable("not connected to NATS, or the stores are not mirrored yet"))
    missing = gateway.view.missing()
    return web.Response(text="ok\n" if not missing else f"ok, without {', '.join(missing)}\n")


async def metrics(request: web.Request) -> web.StreamResponse:
    body = generate_latest(gateway_of(request).registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def figures(gateway: Gateway) -> Iterable[MetricValue]:
    """What is counted when somebody collects it."""
    view = gateway.view
    yield from followed(view.follower, view.ledger)
    yield MetricValue(
        "moorage_event_listeners",
        "Readers of events as they come",
        gateway.stream.listeners + gateway.rejected.listeners,
    )


async def health(request: web.Request) -> web.StreamResponse:
    """Who answers on the bus, which controllers do, and which clusters are silent."""
    gateway = gateway_of(request)
    workers, controllers = await asyncio.gather(_workers(gateway), _controllers(gateway))
    fleet = gateway.view.fleet
    stale = [fleet.names[cid] for cid in range(fleet.size) if fleet.known[cid] and fleet.state(cid) == "Stale"]
    away = _away(gateway, set(stale), who_of(request))
    return answer(
        {
            "expected": [name for name, spec in gateway.mesh.workers.items() if not spec.optional],
            "workers": workers,
            "controllers": controllers,
            "stale": sorted(stale)[:_MOST],
            "staleCount": len(stale),
            "away": away[:_MOST],
            "awayCount": len(away),
        }
    )


def _away(gateway: Gateway, stale: set[str], who: Caller) -> list[dict[str, Any]]:
    """Groups with claims where nobody reports, and which of these clusters are gone from the fleet altogether."""
    view = gateway.view
    if not view.follower.healthy:  # it is we who do not hear
        return []
    found: dict[str, dict[str, Any]] = {}
    for cluster in view.ledger.by_cluster:
        gone = not known_cluster(view.fleet, cluster)
        if not gone and cluster not in stale:
            continue
        for group in {held.group for held in held_on(view, cluster)}:
            if who.sees(project_of(group)):
                one = found.setdefault(group, {"group": group, "stale": [], "gone": []})
                one["gone" if gone else "stale"].append(cluster)
    return [found[group] for group in sorted(found)]


async def _workers(gateway: Gateway) -> list[dict[str, Any]]:
    """Everyone who answers a ping: back as soon as each expected kind did, or out of patience."""
    bus = gateway.bus
    found: list[dict[str, Any]] = []
    complete = asyncio.Event()

    def heard(_: str, data: bytes) -> None:
        try:
            said = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            return  # some other service's ping; not ours to judge
        name = str(said.get("name", ""))
        if not name.startswith("moorage-"):
            return
        meta = said.get("metadata") or {}
        found.append(
            {
                "kind": name.removeprefix("moorage-"),
                "id": said.get("id", ""),
                "version": said.get("version", ""),
                "pid": meta.get("pid", ""),
                "ok": meta.get("ok") == "true",
                "missing": meta.get("missing", ""),
            }
        )
        if gateway.mesh.workers.keys() <= {one["kind"] for one in found}:
            complete.set()

    inbox = f"{bus.nc.new_inbox()}.ping"
    subscription = await bus.subscribe(inbox, heard)
    try:
        await bus.publish("$SRV.PING", b"", reply=inbox)
        try:
            async with asyncio.timeout(_PATIENCE):
                await complete.wait()
                await asyncio.sleep(0.02)  # several of a kind may run
        except TimeoutError:
            pass  # who has not answered by now is what the answer is about
    finally:
        await subscription.unsubscribe()
    return sorted(found, key=lambda one: (one["kind"], one["pid"]))


async def _controllers(gateway: Gateway) -> list[dict[str, Any]]:
    """Each one that is asked for candidates, asked about nothing: any answer will do."""
    view = gateway.view
    asked = {name: c for name, c in view.controllers.items() if c.placement}
    ask = Ask(id=new_id(), group="", revision=0, budget_ms=_PATIENCE * 1e3, epoch="", tenant="", apps=[], intents=[])
    replies = await gateway.bus.ask_many(
        {name: (subjects.candidates(name), _PATIENCE) for name in asked}, msgspec.json.encode(ask)
    )
    return [
        {"name": name, "policy": asked[name].policy, "answers": replies[name].outcome == "answered"}
        for name in sorted(asked)
    ]


async def subject_table(request: web.Request) -> web.StreamResponse:
    return listed(
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
