"""No request of the Placement interface holds the event loop for long, 50 ms on a quiet machine: with 25,000 made providers and 10,000 nodes and
parts, each kind of request at its largest is asked of the worker's own HTTP and storage, and every callback is timed."""

from __future__ import annotations

import asyncio
import gc
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from moorage.ledger import keep_capacity, open_ledger
from moorage.model.allocations import InventoryRecord
from moorage.model.reports import NodeReport
from moorage.placement.callers import unchecked
from moorage.placement.core.records import Change, Provider
from moorage.placement.http import PlacementApi
from moorage.placement.settings import UNCHECKED, PlacementSettings, policy_of
from moorage.placement.storage import Storage
from moorage.placement.worker import BODY_LIMIT
from moorage_testkit.fleets import node, provider, two_zones
from moorage_testkit.merger_harness import OpenMergers

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::aiohttp.web.NotAppKeyWarning")]
#: Processor time that others use, too, is slower. What is not done in pieces takes several times as long.
BOUND = 0.3
HOSTS = 5_000


def nodes() -> list[NodeReport]:
    cards = [provider(f"card-{z}", f"numa-{z}", CARD="1") for z in (0, 1)]
    return [node(cpu="8", zones=two_zones("4"), providers=cards) for _ in range(1_700)]


def made() -> Iterator[Provider]:
    """Yields hosts with two zones and a card in each."""
    for number in range(HOSTS):
        root = _made(f"host-{number}", None, DISK_GB=1000)
        yield root
        for zone in (0, 1):
            numa = _made(f"numa-{number}-{zone}", root.uuid, VCPU=16, MEMORY_MB=32768)
            yield numa
            yield _made(f"card-{number}-{zone}", numa.uuid, FPGA=1)


def _made(name: str, parent: str | None, **inventories: int) -> Provider:
    offered = {resource: InventoryRecord(total=total) for resource, total in inventories.items()}
    ident = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
    return Provider(uuid=ident, name=name, parent=parent, generation=1, inventories=offered)


class Held:
    """The seconds of processor time of each callback of the loop, without collections of garbage: the worker's data is frozen."""

    def __init__(self) -> None:
        self.most = self._collecting = self._collected = 0.0

    def count(self, seconds: float) -> None:
        self.most = max(self.most, seconds - self._collected)
        self._collected = 0.0

    def collected(self, phase: str, _info: Any) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting

    def taken(self) -> float:
        most, self.most = self.most, 0.0
        return most


@contextmanager
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held, run = Held(), asyncio.events.Handle._run

    def measured(handle: Any) -> Any:
        held._collected = 0.0
        began = time.thread_time()
        try:
            return run(handle)
        finally:
            held.count(time.thread_time() - began)

    monkeypatch.setattr(asyncio.events.Handle, "_run", measured)
    gc.callbacks.append(held.collected)
    try:
        yield held
    finally:
        gc.callbacks.remove(held.collected)


@asynccontextmanager
async def served(storage: Storage) -> AsyncIterator[str]:
    own = PlacementSettings("", UNCHECKED, policy_of("secure"), "", 40, 100_000, False)
    app = web.Application(client_max_size=BODY_LIMIT)
    app.router.add_route("*", "/{path:.*}", PlacementApi(storage.state, storage.commit, unchecked, own).handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def ask(url: str, method: str, body: bytes | None, version: str) -> tuple[int, bytes]:
    headers = {"openstack-api-version": f"placement {version}", "x-auth-token": "admin", "x-roles": "admin,service"}
    request = urllib.request.Request(
        url, method=method, data=body, headers={**headers, "content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            found = reply.read()
            assert len(found) == int(reply.headers.get("content-length", len(found)))
            return reply.status, found
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def test_no_request_holds_the_loop_for_long(open_mergers: OpenMergers, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_mergers(lambda: {"lab/one": nodes()}, hpa=False) as site:
        bus, fleet = await site.connect("placement")
        follower = await open_ledger(bus)
        storage = Storage(bus, follower, 1, keep_capacity(follower, fleet))
        await storage.open("http://127.0.0.1:1")
        state = storage.state
        state.apply(Change({found.uuid: found for found in made()}))
        zones = [p.uuid for p in state.providers.values() if "VCPU" in p.inventories]
        took: dict[str, float] = {}

        with timed(monkeypatch) as held:
            async with served(storage) as url:

                async def request(
                    what: str, path: str, method: str = "GET", body: Any = None, version: str = "1.40"
                ) -> bytes:
                    data = None if body is None else msgspec.json.encode(body)
                    assert data is None or len(data) <= BODY_LIMIT
                    await asyncio.sleep(0)  # what this test itself did is counted then
                    held.taken()
                    status, found = await asyncio.to_thread(ask, f"{url}{path}", method, data, version)
                    assert status < 300, found
                    took[what] = held.taken()
                    return found

                def inventories(uuids: list[str]) -> dict[str, Any]:
                    amounts = {"VCPU": {"total": 20}, "MEMORY_MB": {"total": 30000}}
                    return {
                        ident: {"resource_provider_generation": state.generation(ident), "inventories": amounts}
                        for ident in uuids
                    }

                everything = msgspec.json.decode(await request("all providers", "/resource_providers"))
                assert len(everything["resource_providers"]) == len(state.providers) + 6 * 1_700
                await request("all providers, 1.0", "/resource_providers", version="1.0")
                await request("providers with room", "/resource_providers?resources=VCPU:2")
                await request("providers of a tree", f"/resource_providers?in_tree={zones[-1]}")
                simple = "/allocation_candidates?resources=VCPU:2,MEMORY_MB:512"
                pair = "/allocation_candidates?resources_A=VCPU:2&resources_B={}:1&same_subtree=_A,_B"
                answer = msgspec.json.decode(await request("all candidates", simple))
                assert len(answer["allocation_requests"]) == 2 * len(zones)  # each from one of two zones
                await request("all candidates, 1.12", simple, version="1.12")
                await request("first candidates", f"{simple}&limit=10")
                await request("all candidates in zones", pair.format("FPGA"))
                await request("all candidates of nodes", pair.format("CUSTOM_CARD"))
                await request("explanation", "/allocation_candidates/explain?resources=VCPU:200")
                many_groups = "&".join(f"resources_{number}=FPGA:1" for number in range(64))
                await request("no candidates of many groups", f"/allocation_candidates?{many_groups}")
                await request("explanation of many groups", f"/allocation_candidates/explain?{many_groups}")

                consumers: dict[str, dict[str, Any]] = {
                    str(uuid.uuid4()): {
                        "allocations": {zone: {"resources": {"VCPU": 1}}},
                        "project_id": "p",
                        "user_id": "u",
                        "consumer_generation": None,
                        "consumer_type": "T",
                    }
                    for zone in zones[:1180]
                }
                await request("most allocations", "/allocations", "POST", consumers)
                await request("usages", "/usages?project_id=p")
                reshaped = {"inventories": inventories(zones[2000:3550]), "allocations": {}}
                await request("largest reshape of inventories", "/reshaper", "POST", reshaped)
                some = dict(list(consumers.items())[:620])
                for given in some.values():
                    given["consumer_generation"] = 1
                reshaped = {"inventories": inventories(zones[:620]), "allocations": some}
                await request("largest reshape of both", "/reshaper", "POST", reshaped)
                assert state.providers[zones[0]].inventories["VCPU"].total == 20
                many = {**next(iter(consumers.values())), "consumer_generation": None}
                many["allocations"] = {zone: {"resources": {"VCPU": 1}} for zone in zones[4000:6300]}
                await request("one consumer of many", "/allocations", "POST", {str(uuid.uuid4()): many})
                aggregates = {
                    "resource_provider_generation": state.generation(zones[0]),
                    "aggregates": [str(uuid.uuid4()) for _ in range(6000)],
                }
                await request("most aggregates", f"/resource_providers/{zones[0]}/aggregates", "PUT", aggregates)
        late = {what: round(seconds * 1e3) for what, seconds in took.items() if seconds > BOUND}
        assert not late, f"ms for which the loop was held: {late}"
