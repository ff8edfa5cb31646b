"""Answers requests and nothing else: the floor of a request-reply between two processes."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from moorage.bus import Bus, Settings


async def main() -> None:
    bus = await Bus.connect(Settings(sys.argv[1], sys.argv[2]), worker="admin")

    async def echo(msg: object) -> None:
        await bus.nc.publish(msg.reply, msg.data)  # type: ignore[attr-defined]

    await bus.nc.subscribe("bench.echo", cb=echo)
    await bus.settle()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


uvloop.run(main())
