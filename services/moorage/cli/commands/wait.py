"""`moorage wait`: waits until a group reaches a phase or is deleted. Events only wake it; the state is always read again."""

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
from ..placement_text import PLACED, reason_lines
from ..suggestions import for_group
from ..terminal import note, out
from .completion import Group

PHASES = (
    "Draft", "Deciding", "Pending", "Placed", "Deploying", "Running", "Degraded", "Terminating", "Terminated", "Failed",
)  # fmt: skip

#: The state is read at least this often, because an event may be lost.
_POLL_SECONDS = 1.0


def wait(
    group: Group,
    /,
    *,
    for_: Annotated[str, Parameter(name="--for")],
    timeout: str = "60s",
    project: Project = "",
    state: StateDir = None,
) -> int:
    """Wait until a group reaches a phase or is deleted.

    Exits with 7 when the time is up, and with 1 as soon as the group is Failed.

    Parameters
    ----------
    for_
        phase=PHASE or delete. Deploying and Running also satisfy phase=Placed. A pending update is decided first; if it does
        not fit, the group keeps the phase of the running revision, with a note on stderr.
    timeout
        Maximum time to wait, for example 300ms, 10s or 2m.
    """
    name = full_name(group, project)
    within = seconds(timeout)
    client = Client.find(state)
    if for_ == "delete":
        return _wait_until(client, name, within, _deleted, "is not deleted")
    key, _, phase = for_.partition("=")
    phase = phase.capitalize()
    if key != "phase" or phase not in PHASES:
        raise Failure(f"--for must be delete or phase=PHASE with one of {', '.join(PHASES)}, not {for_!r}", USAGE)
    return wait_for_phase(client, name, phase, within)


def wait_for_phase(client: Client, name: str, phase: str, within: float, *, say: Callable[[str], None] = out) -> int:
    """Waits until a group reaches a phase, says so, and returns the exit code."""
    wanted = PLACED if phase == "Placed" else (phase,)

    def reached(found: dict[str, Any] | None) -> int | None:
        if found is None:
            raise Failure(f"group {name} does not exist{for_group(client, name)}", MISSING)
        current, newer = str(found["phase"]), str(found.get("pendingPhase", ""))
        if newer == "Deciding" and newer not in wanted:
            return None  # the phase is still that of the previous revision
        if current in wanted or newer in wanted:
            say(f"{name} {current if current in wanted else newer}")
            if newer and current in wanted:
                note(f"moorage: {name} runs revision {found['revision']}; {_newer(found)}")
            return DONE
        if "Failed" in (current, newer):
            note(f"moorage: {name} is Failed; change its documents")
            for line in reason_lines(client.get(group_path(name, "why")).get("reasons", [])):
                note(f"  {line}")
            return FAILED
        return None

    return _wait_until(client, name, within, reached, f"is not {phase}")


def _deleted(found: dict[str, Any] | None) -> int | None:
    return DONE if found is None else None


def _wait_until(
    client: Client, name: str, within: float, done: Callable[[dict[str, Any] | None], int | None], unmet: str
) -> int:
    """Reads the group's state after every event until `done` returns an exit code."""
    end = time.monotonic() + within
    last: dict[str, Any] | None = None
    while True:
        # The stream first says that it is subscribed, so the state is read after that and no change is missed.
        for _ in client.events(subject_of(name), until=min(end, time.monotonic() + _POLL_SECONDS)):
            last = get_group(client, name)
            if (code := done(last)) is not None:
                return code
        last = get_group(client, name)
        if (code := done(last)) is not None:
            return code
        if time.monotonic() >= end:
            _print_timeout(client, name, f"{unmet} after {within:g} s", last)
            return TIMEOUT


def _newer(found: dict[str, Any]) -> str:
    return f"revision {found['pendingRevision']} is {found['pendingPhase']}"


def _print_timeout(client: Client, name: str, unmet: str, last: dict[str, Any] | None) -> None:
    phase, reasons = "", list[str]()
    if last is not None:
        phase = f", but {last['phase']}"
    if last is not None and last.get("pendingRevision"):
        phase += f" at revision {last['revision']}; {_newer(last)}"
        with contextlib.suppress(Refusal):
            reasons = list(reason_lines(client.get(group_path(name, "why")).get("reasons", [])))
    note(f"moorage: {name} {unmet}{phase}; run `moorage why {name}` for the reasons")
    for line in reasons:
        note(f"  {line}")


def get_group(client: Client, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = client.get(group_path(name))
    except Refusal as refusal:
        if refusal.status == 404:
            return None
        raise
    return found


def subject_of(name: str) -> str:
    from moorage.model.names import group_tokens

    return f"moorage.events.*.*.{group_tokens(name)}"
