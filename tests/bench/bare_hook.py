"""A bare aiohttp handler with TLS that answers what it is asked: the floor of hooks. Prints its port."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time

import uvloop
from aiohttp import web

from moorage.machines import certificates


async def main() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.load(tls, certificates.issue(["127.0.0.1"], time.time(), 86400))

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), content_type="application/json")

    app = web.Application()
    app.add_routes([web.post("/", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
