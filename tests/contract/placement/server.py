"""Serves the Placement interface from memory, on a thread of its own: what the operations answer, without what makes them durable."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from moorage.placement.callers import unchecked
from moorage.placement.core.call import Answer
from moorage.placement.core.state import State
from moorage.placement.http import PlacementApi
from moorage.placement.settings import UNCHECKED, PlacementSettings, policy_of
from moorage.placement.steps import Operation, Steps


def settings(policy: str = "legacy", maximum: int = 39, cors: str = "") -> PlacementSettings:
    return PlacementSettings("127.0.0.1:0", UNCHECKED, policy_of(policy), cors, maximum, 100_000, False)


@contextmanager
def served(own: PlacementSettings) -> Iterator[str]:
    """Yields the URL."""
    sock = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.new_event_loop()
    ready, end = threading.Event(), asyncio.Event()

    async def serve() -> None:
        state, steps = State(), Steps()

        async def commit(operation: Operation, _cause: str, alone: bool) -> Answer:
            async with steps.alone() if alone else contextlib.nullcontext():
                answer = await (steps.in_steps(operation) if alone else steps.run(operation))
                if answer.change is not None:
                    state.apply(answer.change)
                return answer

        api = PlacementApi(state, commit, unchecked, own)
        app = web.Application(client_max_size=1 << 20)
        app.router.add_route("*", "/{path:.*}", api.handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.SockSite(runner, sock).start()
        ready.set()
        await end.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
        sock.close()
