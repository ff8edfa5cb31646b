"""pytest fixtures: `-p moorage_testkit.plugin`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from moorage.bus import Bus
from moorage.mesh.discovery import installed

from .servers import NatsServer, RedisServer


def pytest_configure() -> None:
    # Where no loop was ever set, pytest-asyncio makes one only to remember it, and nobody closes it.
    asyncio.set_event_loop(None)


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    """A broker of its own for one test, everyone an administrator."""
    server = NatsServer()
    server.start()
    yield server
    server.remove()


@pytest.fixture
def secure_nats() -> Iterator[NatsServer]:
    """A broker with a user per kind of worker and the permissions of the subject table."""
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
    """A provisioned bus, as an administrator."""
    bus = await Bus.connect(nats.settings(), worker="admin")
    await bus.provision(installed().stores.values())
    yield bus
    await bus.close()
