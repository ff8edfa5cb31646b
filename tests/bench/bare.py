"""A handler that answers once what it was sent is durable, and nothing else: the floor of a POST."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web

from moorage.bus import Bus, Settings


async def main() -> None:
    bus = await Bus.connect(Settings(sys.argv[1], sys.argv[2]), worker="admin")

    async def post(request: web.Request) -> web.Response:
        body = await request.read()
        await bus.exchange("bench.durable", body)
        return web.Response(body=body, status=201, content_type="application/json")

    app = web.Application()
    app.router.add_post("/", post)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}/\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


uvloop.run(main())
