"""A group's phase as one pure function of document, log and status, so that patcher and gateway always agree."""

from __future__ import annotations

from .attempts import Attempt
from .groups import Phase, State
from .status import GroupStatus

ENDED: tuple[State, ...] = ("Terminated", "TerminateStopped")


def progress(status: GroupStatus) -> Phase:
    """Returns the phase that follows from the confirmations of a decision."""
    if status.reasons:
        return "Degraded"
    ready = True
    for app in status.apps:
        if app.version < status.version:
            ready = False
            continue
        if any(o.state == "Failed" for o in app.objects):
            return "Degraded"
        ready = ready and all(o.state == "Ready" for o in app.objects)
    if ready and not status.held:
        return "Running"
    return "Degraded" if status.reached else "Deploying"


def phase(
    state: State,
    revision: int,
    decision: str,
    counting: bool,
    attempt: Attempt | None = None,
    status: GroupStatus | None = None,
) -> Phase:
    """Returns the phase of a group. `decision`: the current one, which may be of an older revision: an update that does not
    fit keeps the old decision and its phase. `counting`: claims of the group still count in the ledger. `attempt`: the last
    attempt to decide it."""
    if state in ENDED:
        return "Terminating" if counting or decision else "Terminated"
    if decision:
        if status is None or status.decision != decision:
            return "Placed"
        return progress(status)
    if state in ("Created", "Approved", "InstantiateStopped"):
        return "Draft"
    if attempt is None or attempt.revision != revision or attempt.phase not in ("Pending", "Failed"):
        return "Deciding"
    return attempt.phase
