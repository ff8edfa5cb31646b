"""Large bodies are checked beside other requests: an operation never checks one itself."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, web

from moorage.placement.callers import unchecked
from moorage.placement.core import schemas
from moorage.placement.core.call import Answer
from moorage.placement.core.errors import Refused
from moorage.placement.http import PlacementApi
from moorage.placement.settings import UNCHECKED, PlacementSettings, policy_of
from moorage.placement.steps import Operation, Steps
from moorage.placement.worker import BODY_LIMIT

from .service import PlacementService as Service


def allocations(service: Service, consumers: int) -> dict[str, Any]:
    providers = list(service.ids.values())
    return {
        str(uuid.uuid4()): {
            "allocations": {providers[i % len(providers)]: {"resources": {"VCPU": 1}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
            "consumer_type": "TEST",
        }
        for i in range(consumers)
    }


def test_an_operation_does_not_check_a_large_body_itself() -> None:
    body = b'{"name": "' + b"a" * schemas.AT_ONCE + b'"}'
    shape = schemas.provider(40, create=True)
    with pytest.raises(schemas.LargeBody) as large:
        schemas.decoded(body, shape)
    with pytest.raises(Refused, match="does not validate"):
        schemas.CheckedBody.of(large.value)


@pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")
async def test_others_are_answered_while_a_large_body_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check waits for the other request: on the event loop it would wait for ever."""
    service = Service()
    service.tree({f"host{i}": {"VCPU": 1000} for i in range(4)})
    answered, checking = threading.Event(), threading.Event()
    violation = schemas._violation
    threads: set[int] = set()

    def waiting(data: Any, shape: dict[str, Any]) -> Any:
        if len(msgspec.json.encode(data)) > schemas.AT_ONCE:
            threads.add(threading.get_ident())
            checking.set()
            assert answered.wait(40), "nobody else was answered"
        return violation(data, shape)

    monkeypatch.setattr(schemas, "_violation", waiting)
    steps = Steps()

    async def commit(operation: Operation, _cause: str, alone: bool) -> Answer:
        async with steps.alone() if alone else contextlib.nullcontext():
            answer = await (steps.in_steps(operation) if alone else steps.run(operation))
            if answer.change is not None:
                service.state.apply(answer.change)
            return answer

    own = PlacementSettings("127.0.0.1:0", UNCHECKED, policy_of("secure"), "", 40, 1000, False)
    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_route("*", "/{path:.*}", PlacementApi(service.state, commit, unchecked, own).handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    headers = {"x-auth-token": "admin", "openstack-api-version": "placement 1.40"}
    async with ClientSession(f"http://127.0.0.1:{port}", headers=headers) as client:
        body = allocations(service, 900)
        assert schemas.AT_ONCE < len(msgspec.json.encode(body)) < BODY_LIMIT
        large = asyncio.create_task(client.post("/allocations", json=body))
        assert await asyncio.to_thread(checking.wait, 40)
        async with client.get("/resource_providers") as other:
            assert len((await other.json())["resource_providers"]) == 4
        answered.set()
        assert (await large).status == 204
        assert threads and threading.get_ident() not in threads
        assert len(service.state.consumers) == 900
        wrong = {**body, str(uuid.uuid4()): {"nothing": 1}}
        async with client.post("/allocations", json=wrong) as refused:
            assert refused.status == 400 and "does not validate" in (await refused.text())
        async with client.post(
            "/allocations", data=b"[" * BODY_LIMIT + b"[", headers={"content-type": "application/json"}
        ) as refused:
            assert refused.status == 413
    await runner.cleanup()
