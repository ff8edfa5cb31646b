"""The operations of the Placement interface without HTTP, on a state of their own."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from moorage.placement.core import call
from moorage.placement.core.call import Answer, Call, LongBody
from moorage.placement.core.routes import ROUTES
from moorage.placement.core.schemas import CheckedBody, LargeBody
from moorage.placement.core.state import State


def finished(steps: Generator[None, None, Answer]) -> Answer:
    """Returns the answer that is made in steps, with its whole body."""
    answer = call.finished(steps)
    if isinstance(answer.body, LongBody):
        answer.body = msgspec.Raw(b"".join(answer.body.pieces))
    return answer


class PlacementService:
    """The operations on a state of their own. Providers are told apart by name."""

    def __init__(self, version: int = 40) -> None:
        self.state = State()
        self.version = version
        self.now = 0.0
        self.ids: dict[str, str] = {}

    def call(
        self, method: str, route: str, query: str = "", body: Any = None, version: int | None = None, **path: str
    ) -> Answer:
        found = ROUTES[route][method]
        wanted = self.version if version is None else version
        operation = next(r.operation for r in found if r.since <= wanted <= r.until)
        pairs = parse_qsl(query, keep_blank_values=True)
        self.now += 1
        call = Call(self.state, wanted, path, pairs, msgspec.json.encode(body), now=self.now)
        try:
            result = operation(call)
        except LargeBody as large:
            call.body = CheckedBody.of(large)
            result = operation(call)
        answer = result if isinstance(result, Answer) else finished(result)
        if answer.change is not None:
            self.state.apply(answer.change)
        return answer

    def tree(self, spec: dict[str, Any], parent: str | None = None) -> None:
        """Makes providers: name → {class: total, "traits": …, "aggregates": …, "used": {class: n}, "children": {…}}."""
        for name, fields in spec.items():
            given = dict(fields)
            children, traits, aggregates, used = (
                given.pop(k, None) for k in ("children", "traits", "aggregates", "used")
            )
            body: dict[str, Any] = {"name": name, "parent_provider_uuid": parent}
            made = self.call("POST", "/resource_providers", body=body).body["uuid"]
            self.ids[name] = made
            for total in given:
                if total.startswith("CUSTOM_"):
                    self.call("PUT", "/resource_classes/{name}", name=total)
            if given:
                body = {"resource_provider_generation": 0, "inventories": {c: {"total": t} for c, t in given.items()}}
                self.call("PUT", "/resource_providers/{uuid}/inventories", body=body, uuid=made)
            for trait in traits or ():
                if trait.startswith("CUSTOM_"):
                    self.call("PUT", "/traits/{name}", name=trait)
            if traits:
                body = {"resource_provider_generation": self.state.generation(made), "traits": traits}
                self.call("PUT", "/resource_providers/{uuid}/traits", body=body, uuid=made)
            if aggregates:
                self.call("PUT", "/resource_providers/{uuid}/aggregates", body=aggregates, uuid=made, version=1)
            if used:
                self.allocate({name: used})
            self.tree(children or {}, made)

    def allocate(self, allocations: dict[str, dict[str, int]]) -> None:
        body = {
            "allocations": {self.ids[name]: {"resources": amounts} for name, amounts in allocations.items()},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
            "consumer_type": "TEST",
        }
        consumer = f"c0000000-0000-4000-8000-{len(self.state.consumers):012d}"
        self.call("PUT", "/allocations/{consumer_uuid}", body=body, consumer_uuid=consumer)

    def candidates(self, query: str) -> list[dict[str, dict[str, int]]]:
        """Returns the allocations of each candidate by provider name, and checks that each can be allocated as it is."""
        names = {uuid: name for name, uuid in self.ids.items()}
        body = msgspec.json.decode(msgspec.json.encode(self.call("GET", "/allocation_candidates", query).body))
        found = [{names[p]: a["resources"] for p, a in r["allocations"].items()} for r in body["allocation_requests"]]
        return found

    def mappings(self, query: str) -> list[dict[str, list[str]]]:
        names = {uuid: name for name, uuid in self.ids.items()}
        body = msgspec.json.decode(msgspec.json.encode(self.call("GET", "/allocation_candidates", query).body))
        return [{s: [names[p] for p in ps] for s, ps in r["mappings"].items()} for r in body["allocation_requests"]]
