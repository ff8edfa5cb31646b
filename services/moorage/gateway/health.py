"""Whether we and all others are well: for load balancers, for Prometheus, and for `moorage check`."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily

from moorage.bus import new_id, subjects
from moorage.model.candidates import Ask

from .answers import answer, listed, refuse, unavailable
from .explain import phase_of
from .serving import Gateway, gateway_of

#: How long the others get to say that they are there.
_PATIENCE = 0.6

#: Kinds of users of the bus that are no workers, or need not run.
_NO_WORKERS = ("admin", "controller", "sim")
EXPECTED = tuple(kind for kind in subjects.KINDS if kind not in _NO_WORKERS)


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


class State:
    """Numbers that are counted only when somebody collects them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> list[GaugeMetricFamily]:
        view = self._gateway.view
        groups = GaugeMetricFamily("moorage_groups", "Groups by phase", labels=["phase"])
        known = [one for name in view.groups if (one := view.known(name)) is not None]
        for phase, count in Tally(phase_of(one) for one in known).items():
            groups.add_metric([phase], count)
        clusters = GaugeMetricFamily("moorage_clusters", "Clusters by state", labels=["state"])
        fleet = view.fleet
        states = Tally(fleet.state(cid) for cid in range(fleet.size) if fleet.known[cid])
        for state, count in states.items():
            clusters.add_metric([state], count)
        claims = GaugeMetricFamily("moorage_claims", "Claims that count", value=len(view.ledger.claims))
        seq = GaugeMetricFamily("moorage_ledger_seq", "Last commit folded", value=view.ledger.seq)
        healthy = GaugeMetricFamily(
            "moorage_fleet_current", "1 while the fleet is current", value=float(view.follower.healthy)
        )
        return [groups, clusters, claims, seq, healthy]


async def health(request: web.Request) -> web.StreamResponse:
    """Who answers on the bus, which controllers do, and which clusters are silent."""
    gateway = gateway_of(request)
    workers, controllers = await asyncio.gather(_workers(gateway), _controllers(gateway))
    fleet = gateway.view.fleet
    stale = [fleet.names[cid] for cid in range(fleet.size) if fleet.known[cid] and fleet.state(cid) == "Stale"]
    return answer({"expected": EXPECTED, "workers": workers, "controllers": controllers, "stale": sorted(stale)[:100]})


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
        if {*EXPECTED, "sim"} <= {one["kind"] for one in found}:
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
                "publish": row.says,
                "subscribe": row.hears,
                "about": row.about,
            }
            for row in subjects.TABLE
        ]
    )
