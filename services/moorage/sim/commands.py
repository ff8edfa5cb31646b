"""Answers the requests of operators: apply a fleet, list clusters, make a cluster misbehave."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from moorage.bus import BusError, Incoming, NoAnswer
from moorage.mesh import stores
from moorage.model.problems import ENVELOPE, Problem, Refused, Violation, invalid, not_found, unknown_fields
from moorage.parsing import yaml_json

from .core.fleet_documents import FleetDocument, decode, expand
from .core.fleet_status import taken_problem
from .core.simulator import FAULTS
from .runner import SimulatorRunner

MAX_FLEET = 8 << 20
MAX_CONTAINERS = 1_000_000
_MAX_LISTED = 10_000


class SavedFleet(msgspec.Struct):
    """The state that a restarted simulator takes over: its fleet, and the session before it."""

    session: str
    fleet: FleetDocument | None = None


class FleetCommands:
    """The requests that only the simulator of `moorage up` answers."""

    def __init__(self, sim: SimulatorRunner, saved: SavedFleet) -> None:
        self.sim = sim
        self.saved = saved

    async def apply(self, incoming: Incoming) -> bytes:
        document = decode(yaml_json.parse_json(incoming.data, MAX_CONTAINERS))
        try:
            await self.save(SavedFleet(self.saved.session, document))
        except (NoAnswer, BusError) as error:
            raise Refused(Problem(title="No answer", status=503, code="NoAnswer", detail=str(error))) from error
        result = await self.sim.apply_fleet(expand(document))
        if result["refused"]:
            consequence = "they join when that one is silent or gone; all other clusters are as the document says"
            raise Refused(taken_problem(result["refused"], consequence))
        return msgspec.json.encode(result)

    async def save(self, saved: SavedFleet) -> None:
        await self.sim.bus.objects(stores.SIMULATED_FLEET).put("fleet", msgspec.json.encode(saved))
        self.saved = saved

    async def list(self, incoming: Incoming) -> bytes:
        body = _object_in(incoming.data) if incoming.data.strip() else {}
        if errors := unknown_fields(body, ("limit", "continue", *ENVELOPE)):
            raise Refused(invalid(errors))
        limit, after = body.get("limit", _MAX_LISTED), body.get("continue", "")
        if not isinstance(limit, int) or not isinstance(after, str) or not 1 <= limit <= _MAX_LISTED:
            message = f"limit is a number up to {_MAX_LISTED}, continue is text"
            raise Refused(invalid([Violation(path="limit", code="BadValue", message=message)]))
        rows = self.sim.core.rows(limit, after)
        following = rows[-1]["cluster"] if len(rows) == limit else ""
        total = len(self.sim.core.agents)
        return msgspec.json.encode({"items": rows, "total": total, **({"continue": following} if following else {})})


async def inject_fault(sim: SimulatorRunner, incoming: Incoming, *, answers_for_all: bool) -> bytes | None:
    """Makes a cluster misbehave. All simulators receive the request: the one that has the cluster answers, or, if none has
    it, the one that `answers_for_all`."""
    body = _object_in(incoming.data)
    errors = _fault_errors(body)
    if not errors and sim.fault(body["cluster"], body["fault"], body.get("seconds")):
        return msgspec.json.encode({"accepted": True, "cluster": body["cluster"], "fault": body["fault"]})
    if not answers_for_all:
        return None
    if errors:
        raise Refused(invalid(errors))
    await asyncio.sleep(0.25)  # another simulator may have the cluster, and the first answer counts
    raise Refused(not_found(f"a simulated cluster {body['cluster']}"))


def _fault_errors(body: dict[str, Any]) -> list[Violation]:
    seconds = body.get("seconds")
    errors = unknown_fields(body, ("cluster", "fault", "seconds", *ENVELOPE))
    if not isinstance(body.get("cluster"), str):
        errors.append(Violation(path="cluster", code="Required", message="is required"))
    if body.get("fault") not in FAULTS:
        errors.append(Violation(path="fault", code="BadValue", message=f"must be one of {', '.join(FAULTS)}"))
    is_number = isinstance(seconds, int | float | None) and not isinstance(seconds, bool)
    if not is_number or (seconds is not None and not 0 < seconds <= 86_400):
        errors.append(Violation(path="seconds", code="BadValue", message="must be a number of seconds, at most a day"))
    return errors


def _object_in(data: bytes) -> dict[str, Any]:
    body = msgspec.json.decode(data)
    if not isinstance(body, dict):
        raise Refused(invalid([Violation(path="", code="WrongType", message="must be an object")]))
    return body
