"""Sends requests to other workers. Their problems are passed on unchanged."""

from __future__ import annotations

from typing import Any

import msgspec

from moorage.bus import Bus, NoAnswer
from moorage.model.problems import Refused, problem_in

from .responses import encode, unavailable

_decode = msgspec.json.Decoder(dict[str, Any]).decode

#: Names of the workers that answer on a subject, for error messages.
_WORKER_NAMES = {
    "intents": "the intent store",
    "merger": "the merger",
    "patcher": "the patcher",
    "sim": "the simulator",
    "machines": "the worker slots",
    "devices": "the merger",
}


#: Seconds until a request is repeated, because the worker that got it may have died.
PATIENCE = 1.0


async def call(
    bus: Bus, subject: str, payload: Any, *, timeout: float = 5.0, again: Any = None, patience: float = PATIENCE
) -> dict[str, Any]:
    return _decode(await fetch(bus, subject, payload, timeout=timeout, again=again, patience=patience))


async def fetch(
    bus: Bus, subject: str, payload: Any, *, timeout: float = 5.0, again: Any = None, patience: float = PATIENCE
) -> bytes:
    """Sends a request and returns the raw reply. Raises Refused with the worker's problem, or with Unavailable if no worker
    answered; a write may have taken effect then. `again` is the payload of a repeated request, which must be idempotent."""
    data = payload if isinstance(payload, bytes) else encode(payload)
    repeat = None if again is None else (patience, again if isinstance(again, bytes) else encode(again))
    try:
        reply = await bus.request(subject, data, timeout=timeout, again=repeat)
        problem = problem_in(reply)
        if repeat is not None and problem is not None and problem.code == "Ending":
            reply = await bus.request(subject, repeat[1], timeout=timeout)
            problem = problem_in(reply)
    except NoAnswer as error:
        area = subject.split(".")[1]
        worker = _WORKER_NAMES.get(area, area)
        not_sent = "nobody listens" in str(error)
        detail = f"{worker} does not answer" + (
            "" if not_sent else " in time; the request may have taken effect, retry"
        )
        raise Refused(unavailable(f"{detail}; run `moorage check` for details")) from error
    if problem is not None:
        raise Refused(problem)
    return reply
