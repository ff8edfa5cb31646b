"""Operations that return the amounts in use, of a provider or of a project."""

from __future__ import annotations

from collections.abc import Generator
from itertools import chain

from . import schemas
from .allocations import UNKNOWN_TYPE
from .call import Answer, Call
from .errors import not_found
from .records import Consumer

#: Consumers that are looked at between two steps of a long answer.
_SLICE = 1000


def of_provider(call: Call) -> Answer:
    wanted = call.path["uuid"]
    if not call.state.has(wanted):
        raise not_found(f"No resource provider with uuid {wanted} found: No resource provider with uuid {wanted} found")
    body = {"resource_provider_generation": call.state.generation(wanted), "usages": call.state.usages(wanted)}
    return Answer(body=body, modified=call.now)


def total(call: Call) -> Generator[None, None, Answer]:
    schemas.check_query(call.query, schemas.usage_query(call.version))
    project, user, kind = (call.parameter(name) for name in ("project_id", "user_id", "consumer_type"))
    found: list[Consumer] = []
    for number, consumer in enumerate(
        chain(list(call.state.consumers.values()), call.state.reported.claims.of_project(project or ""))
    ):
        if consumer.project == project and user in (None, "", consumer.user):
            found.append(consumer)
        if number % _SLICE == 0:
            yield
    if call.version < 38:
        return Answer(body={"usages": _sums(found)}, modified=call.now)
    groups: dict[str, list[Consumer]] = {}
    for consumer in found:
        known = consumer.type or UNKNOWN_TYPE
        if kind in (None, "all", known):
            groups.setdefault("all" if kind == "all" else known, []).append(consumer)
    body = {name: {**_sums(members), "consumer_count": len(members)} for name, members in groups.items()}
    return Answer(body={"usages": body}, modified=call.now)


def _sums(consumers: list[Consumer]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for consumer in consumers:
        for amounts in consumer.allocations.values():
            for name, amount in amounts.items():
                sums[name] = sums.get(name, 0) + amount
    return sums
