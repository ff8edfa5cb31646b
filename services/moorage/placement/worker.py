"""The placement worker: serves the interface while it holds the lease, and passes requests on to the holder while it does not."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import structlog
from aiohttp import web

from moorage.bus import Bus, BusError, Lease, NoAnswer, Settings, setting
from moorage.fleet import Fleet, FleetFollower
from moorage.ledger import keep_capacity, open_ledger
from moorage.ledger.metrics import LEDGER_CONFLICTS, LEDGER_SEQUENCE
from moorage.telemetry import ACTIVE, MetricValue
from moorage.web import AuditWriter, TokenReader, forward_to_leader, listener_of, make_session, placement_leader

from .callers import CallerOf, by_token, unchecked
from .core.call import Answer
from .core.errors import Refused
from .http import PlacementApi
from .metrics import CandidateMetrics
from .settings import UNCHECKED, PlacementSettings
from .steps import Operation
from .storage import Deposed, Storage

log = structlog.get_logger("placement")

#: Seconds that the start waits for the fleet.
PATIENCE = 20.0
#: Thresholds of the garbage collection: what was made since the start is looked through in parts of 100,000 objects (30 ms), and all of
#: it as seldom as in other workers.
COLLECT_AFTER = (20_000, 5, 400)
#: Bytes of a body. What is done with it keeps other requests waiting.
BODY_LIMIT = 1 << 18


class PlacementServer:
    """Answers HTTP. Until `activate` it passes requests on."""

    def __init__(self, bus: Bus, settings: PlacementSettings, caller_of: CallerOf, lease: Lease) -> None:
        self._bus, self._settings, self._caller_of, self._lease = bus, settings, caller_of, lease
        self._api: PlacementApi | None = None
        self._storage: Storage | None = None
        self._session = make_session()
        self.audit = AuditWriter(bus)
        self._metrics = CandidateMetrics(bus.process_health.registry)

    @property
    def active(self) -> bool:
        return self._api is not None

    def health(self) -> dict[str, Any]:
        if self._storage is None:
            return {"ok": True, "role": "standby"}
        return {"ok": True, "role": "active", "seq": self._storage.seq}

    def values(self) -> Iterator[MetricValue]:
        yield MetricValue(*ACTIVE, float(self.active))
        if self._storage is not None:
            yield MetricValue(*LEDGER_SEQUENCE, self._storage.seq)
            yield MetricValue(*LEDGER_CONFLICTS, self._storage.conflicts)

    def activate(self, storage: Storage) -> None:
        self._storage = storage

        async def commit(operation: Operation, cause: str, alone: bool) -> Answer:
            if not self._lease.is_certain:
                raise Refused(503)
            try:
                answer = await storage.commit(operation, cause, alone)
            except Deposed:
                raise Refused(503) from None
            if not self._lease.is_certain:
                raise Refused(503)
            return answer

        self._api = PlacementApi(storage.state, commit, self._caller_of, self._settings, self.audit, self._metrics)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self._api is not None:
            return await self._api.handle(request)
        if not request.raw_path.startswith("/"):
            return web.Response(status=400)
        try:
            leader = await placement_leader(self._bus)
            if leader is not None:
                return await forward_to_leader(self._bus, leader, self._session, request, request.raw_path)
        except (aiohttp.ClientError, TimeoutError, NoAnswer, BusError) as error:
            log.warning("a request could not be passed on", error=str(error))
        return web.Response(status=503, headers={"retry-after": "1"})

    async def close(self) -> None:
        await self.audit.flush()
        await self._session.close()


def application(server: PlacementServer) -> web.Application:
    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_route("*", "/{path:.*}", server.handle)
    return app


async def main(settings: Settings, *, listener: socket.socket | None = None, token: str = "") -> None:
    """`listener` and `token` come from the supervisor; alone, MOORAGE_PLACEMENT_HTTP and MOORAGE_TOKEN say them."""
    own = PlacementSettings.from_env()
    bus = await Bus.connect(settings, worker="placement")
    lease = Lease(bus, "placement")
    tokens = TokenReader(bus)
    caller_of = unchecked if own.auth == UNCHECKED else by_token(tokens, token or setting("MOORAGE_TOKEN"))
    server = PlacementServer(bus, own, caller_of, lease)
    runner = web.AppRunner(application(server), access_log=None, shutdown_timeout=1.0, handle_signals=False)
    fleet = Fleet()
    nodes = FleetFollower(settings.redis_url, fleet)
    reading: asyncio.Task[None] | None = None
    try:
        bus.process_health.add_values(server.values)
        await tokens.start()
        await runner.setup()
        sock = listener if listener is not None else listener_of(own.http)
        await web.SockSite(runner, sock).start()
        if listener is not None:
            # Workers of one supervisor share its socket: what is passed on must reach the one that is active.
            sock = listener_of("127.0.0.1:0")
            await web.SockSite(runner, sock).start()
        address = _address_of(sock, settings.nats_url)
        await bus.announce(server.health)
        reading = asyncio.create_task(nodes.start())
        await lease.hold()
        follower = await open_ledger(bus)
        # Made trees are served without the fleet, too. Nodes and parts are then as if they were gone.
        await asyncio.wait([reading], timeout=PATIENCE)
        if not reading.done():
            log.warning("the fleet in Redis cannot be read; its nodes are shown once it can")
        storage = Storage(bus, follower, lease.generation, keep_capacity(follower, fleet, lazy=True))
        await storage.open(f"http://{address}", unchecked=own.auth == UNCHECKED)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through all of it again and again would keep requests waiting
        gc.set_threshold(*COLLECT_AFTER)
        server.activate(storage)
        log.info("active", generation=lease.generation, providers=len(storage.state.providers))
        # Without the lease another worker is active: end, and be started again as a standby.
        await lease.until_lost()
    finally:
        await runner.cleanup()
        await server.close()
        if reading is not None:
            reading.cancel()
            await nodes.stop()
        await lease.release()
        await bus.close()


def _address_of(sock: socket.socket, nats_url: str) -> str:
    """Returns the address for other workers. If the socket listens on all addresses, it is the one that NATS sees."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = local_address_towards(nats_url)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_address_towards(url: str) -> str:
    """Returns the address of this machine on its way to another. Nothing is sent."""
    target = urlsplit(url.split(",")[0])
    for family, kind, protocol, _, address in socket.getaddrinfo(
        target.hostname, target.port or 4222, type=socket.SOCK_DGRAM
    ):
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(address)
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return socket.gethostname()
