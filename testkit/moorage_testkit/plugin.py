"""Provides pytest fixtures: `-p moorage_testkit.plugin`."""

from __future__ import annotations

import asyncio
import os
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import ParseResult

import pytest
import pytest_asyncio
from nats.aio.transport import TcpTransport

from moorage.bus import Bus
from moorage.mesh.discovery import installed

from . import servers
from .servers import NatsServer, RedisServer

#: A file system in memory, and the bytes that must be free there: far more than all servers of a parallel run write.
_MEMORY, _ROOM = Path("/dev/shm"), 8 << 30


def pytest_configure() -> None:
    # Where no loop was ever set, pytest-asyncio makes one only to remember it, and nobody closes it.
    asyncio.set_event_loop(None)
    _close_replaced_connections()
    _close_connections_with_their_loop()
    servers.data_root = _memory()


def _memory() -> Path | None:
    """Returns the file system in memory, where syncing a file costs nothing; None if it is too small. Tests kill servers, but the
    machine does not lose what it has not written."""
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return None
    return _MEMORY if found.f_bavail * found.f_frsize >= _ROOM and os.access(_MEMORY, os.W_OK) else None


def _close_connections_with_their_loop() -> None:
    """Makes an event loop close the connections that are still open when it is closed.

    A client that is cancelled while it connects leaves its connection open, and the garbage collector would report that in
    whatever test runs by then."""
    close = BaseSelectorEventLoop.close

    def closing(loop: Any) -> None:
        if not loop.is_closed() and not loop.is_running():
            for transport in list(loop._transports.values()):
                transport.abort()
                loop.run_until_complete(asyncio.sleep(0))
        close(loop)

    BaseSelectorEventLoop.close = closing  # type: ignore[assignment, method-assign]


def _close_replaced_connections() -> None:
    """Makes the NATS client close a connection that it gives up because the broker does not answer on it.

    It only drops such connections, and the garbage collector reports them in whatever test runs by then."""
    connect = TcpTransport.connect

    async def closing(transport: TcpTransport, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        if transport._io_writer is not None:
            transport._io_writer.close()
        await connect(transport, uri, buffer_size, connect_timeout)

    TcpTransport.connect = closing  # type: ignore[assignment, method-assign]


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """Runs a broker for one test; every client is an administrator."""
    server = NatsServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def secure_nats() -> Iterator[NatsServer]:
    """Runs a broker with a user per kind of worker and the permissions of the subject table."""
    server = NatsServer(secure=True)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


@pytest_asyncio.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    """Connects a bus as an administrator, with streams and buckets provisioned."""
    bus = await Bus.connect(nats.settings(), worker="admin")
    await bus.provision(installed().stores.values())
    yield bus
    await bus.close()
