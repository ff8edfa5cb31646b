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
}


#: After so long a question is asked once more: mostly because who had it is dead.
PATIENCE = 1.0


async def call(
    bus: Bus, subject: str, payload: Any, *, timeout: float = 5.0, again: Any = None, patience: float = PATIENCE
) -> dict[str, Any]:
    return _decode(await fetch(bus, subject, payload, timeout=timeout, again=again, patience=patience))


async def fetch(
    bus: Bus, subject: str, payload: Any, *, timeout: float = 5.0, again: Any = None, patience: float = PATIENCE
) -> bytes:
    """Raises Refused with the worker's problem, or one of our own where nobody answered: then a write may or may not
    have happened, and says so. `again`: what is asked after a while without an answer; to do it twice must be as good
    as once."""
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
