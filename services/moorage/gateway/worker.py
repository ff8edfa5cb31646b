"""The shell of the gateway: connects, mirrors, serves HTTP until it is told to end."""

from __future__ import annotations

import asyncio
import os
import socket

from aiohttp import web

from moorage.bus import Bus, Settings
from moorage.telemetry import configure

from . import candidates, clusters, events, groups, health, writing
from .serving import BODY_LIMIT, GATEWAY, Gateway, counted, known, told
from .stream import Stream
from .v2 import routes as v2
from .view import View

DEFAULT_HTTP = "127.0.0.1:7070"
_GROUP = "/v1/groups/{project}/{app}/{version}/{group}"


def build(gateway: Gateway) -> web.Application:
    """All routes, in one place."""
    app = web.Application(middlewares=[counted, told, known], client_max_size=BODY_LIMIT)
    app[GATEWAY] = gateway
    gateway.registry.register(health.State(gateway))
    app.add_routes(
        [
            web.get("/livez", health.livez),
            web.get("/readyz", health.readyz),
            web.get("/metrics", health.metrics),
            web.get("/v1/health", health.health),
            web.get("/v1/subjects", health.subject_table),
            web.post("/v1/apply", writing.apply),
            web.post("/v1/simulate", writing.simulate),
            web.get("/v1/applications", groups.applications),
            web.get("/v1/applications/{project}/{name}", groups.application),
            web.delete("/v1/applications/{project}/{name}", writing.delete_application),
            web.get("/v1/groups", groups.groups),
            web.get(_GROUP, groups.group),
            web.delete(_GROUP, writing.delete_group),
            web.get(_GROUP + "/why", groups.group_why),
            web.get(_GROUP + "/candidates", candidates.group_candidates),
            web.get(_GROUP + "/story", events.group_story),
            web.get(_GROUP + "/diff", groups.group_diff),
            web.post(_GROUP + "/{verb}", writing.act),
            web.get("/v1/intents", groups.intents),
            web.get("/v1/intents/{kind}/{project}/{name}", groups.intent),
            web.delete("/v1/intents/{kind}/{project}/{name}", writing.delete_intent),
            web.get("/v1/clusters", clusters.clusters),
            web.get("/v1/clusters/{provider}/{name}", clusters.cluster),
            web.patch("/v1/clusters/{provider}/{name}", writing.patch_cluster),
            web.get("/v1/nodes", clusters.nodes),
            web.get("/v1/nodes/{provider}/{cluster}/{name}", clusters.node),
            web.get("/v1/decisions", groups.decisions),
            web.get("/v1/decisions/{id}", groups.decision),
            web.get("/v1/decisions/{id}/candidates", candidates.decision_candidates),
            web.get("/v1/controllers", groups.controllers),
            web.get("/v1/controllers/{name}", groups.controller),
            web.put("/v1/controllers/{name}", writing.put_controller),
            web.get("/v1/events", events.events),
            web.get("/v1/story/{id}", events.story),
            web.get("/v1/sim/clusters", writing.sim_clusters),
            web.put("/v1/sim/clusters", writing.put_fleet),
            web.post("/v1/sim/clusters", writing.put_fleet),
            web.post("/v1/sim/clusters/{provider}/{name}/fault", writing.fault),
        ]
    )
    v2.add_to(app, gateway)
    return app


def listener_of(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, int(port)))
    return sock


async def main(settings: Settings, *, listener: socket.socket | None = None, token: str = "") -> None:
    """`listener` and `token` come from the supervisor; alone, MOORAGE_HTTP and MOORAGE_TOKEN say them."""
    configure("gateway")
    token = token or os.environ.get("MOORAGE_TOKEN", "")
    if not token:
        raise SystemExit("the gateway needs MOORAGE_TOKEN: without a token everybody could write")
    bus = await Bus.connect(settings, worker="gateway")
    try:
        view, stream = View(bus, settings), Stream(bus)
        gateway = Gateway(bus, view, stream, token)
        await view.start()
        v2.start(gateway)
        await stream.start()
        runner = web.AppRunner(build(gateway), access_log=None, shutdown_timeout=1.0, handle_signals=False)
        await runner.setup()
        sock = listener if listener is not None else listener_of(os.environ.get("MOORAGE_HTTP", DEFAULT_HTTP))
        sock.setblocking(False)
        await web.SockSite(runner, sock, backlog=512).start()
        gateway.ready = True
        await bus.announce(lambda: {"ok": not view.missing(), "missing": view.missing()})
        try:
            await bus.closed.wait()
        finally:
            gateway.ready = False
            stream.end()
            await runner.cleanup()
            await view.stop()
    finally:
        await asyncio.shield(bus.close())
