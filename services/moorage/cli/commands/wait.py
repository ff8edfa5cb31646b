"""`moorage wait`: until a group is in a phase or gone. Events wake it; the state itself is always asked again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Annotated, Any

from cyclopts import Parameter

from ..durations import seconds
from ..exit_codes import DONE, FAILED, MISSING, TIMEOUT, USAGE, Failure
from ..gateway_client import Client, Refusal, group_path
from ..names import full_name
from ..output import Project, StateDir
from ..terminal import note, out
from .completion import Group
from .why import PLACED, reason_lines

PHASES = (
    "Draft", "Deciding", "Pending", "Placed", "Deploying", "Running", "Degraded", "Terminating", "Terminated", "Failed",
)  # fmt: skip

#: An event may be lost; the state is asked for at least this often.
_AGAIN = 1.0


def wait(
    group: Group,
    /,
    *,
    for_: Annotated[str, Parameter(name="--for")],
    timeout: str = "60s",
    project: Project = "",
    state: StateDir = None,
) -> int:
    """Wait until a group is in a phase or deleted: 0 then, 7 when out of time, 1 at once when it Failed.

    Parameters
    ----------
    for_
        phase=PHASE (Placed is also satisfied by Deploying and Running) or delete. An update is decided first; one that does
        not fit keeps the phase of what runs, and stderr says so.
    timeout
        How long: 300ms, 10s, 2m.
    """
    name = full_name(group, project)
    within = seconds(timeout)
    client = Client.find(state)
    if for_ == "delete":
        return _until(client, name, within, _gone, "is not deleted")
    key, _, phase = for_.partition("=")
    phase = phase.capitalize()
    if key != "phase" or phase not in PHASES:
        raise Failure(f"--for {for_!r} is neither delete nor phase= with one of {', '.join(PHASES)}", USAGE)
    wanted = PLACED if phase == "Placed" else (phase,)

    def reached(found: dict[str, Any] | None) -> int | None:
        if found is None:
            raise Failure(f"group {name} does not exist", MISSING)
        phase, newer = str(found["phase"]), str(found.get("pendingPhase", ""))
        if newer == "Deciding" and newer not in wanted:
            return None  # what runs is from before
        if phase in wanted or newer in wanted:
            out(f"{name} {phase if phase in wanted else newer}")
            if newer and phase in wanted:
                note(f"moorage: {name} runs revision {found['revision']}; {_newer(found)}")
            return DONE
        if "Failed" in (phase, newer):
            note(f"moorage: {name} Failed: only changed documents help")
            for line in reason_lines(client.get(group_path(name, "why")).get("reasons", [])):
                note(f"  {line}")
            return FAILED
        return None

    return _until(client, name, within, reached, f"is not {phase}")


def _gone(found: dict[str, Any] | None) -> int | None:
    return DONE if found is None else None


def _until(
    client: Client, name: str, within: float, done: Callable[[dict[str, Any] | None], int | None], what: str
) -> int:
    """Asks, and asks again whenever something happened to the group."""
    end = time.monotonic() + within
    last: dict[str, Any] | None = None
    while True:
        # The first thing said by the stream is that it stands: what happens after the question is not missed.
        for _ in client.events(subject_of(name), until=min(end, time.monotonic() + _AGAIN)):
            last = look(client, name)
            if (code := done(last)) is not None:
                return code
        last = look(client, name)
        if (code := done(last)) is not None:
            return code
        if time.monotonic() >= end:
            _tell_timeout(client, name, f"{what} after {within:g} s", last)
            return TIMEOUT


def _newer(found: dict[str, Any]) -> str:
    return f"revision {found['pendingRevision']} is {found['pendingPhase']}"


def _tell_timeout(client: Client, name: str, what: str, last: dict[str, Any] | None) -> None:
    phase, reasons = "", list[str]()
    if last is not None:
        phase = f", it is {last['phase']}"
    if last is not None and last.get("pendingRevision"):
        phase += f" at revision {last['revision']}; {_newer(last)}"
        with contextlib.suppress(Refusal):
            reasons = list(reason_lines(client.get(group_path(name, "why")).get("reasons", [])))
    note(f"moorage: {name} {what}{phase}; `moorage why {name}` has the reasons")
    for line in reasons:
        note(f"  {line}")


def look(client: Client, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get(group_path(name))
    except Refusal as wrong:
        if wrong.status == 404:
            return None
        raise
    return found


def subject_of(name: str) -> str:
    from moorage.model.names import group_tokens

    return f"moorage.events.*.*.{group_tokens(name)}"
