"""Named places at which a test ends or stops the very process that comes there, where a message on the bus could only say
"about now". Without MOORAGE_FAILPOINTS in the environment a place costs the call of an empty function."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

VARIABLE = "MOORAGE_FAILPOINTS"

#: What has happened at each, and what has not yet.
POINTS: dict[str, str] = {
    "intents.kept": "the older revision is kept, the group's record is not written",
    "intents.stored": "the group's record is written, neither the event nor the hint to decide is said",
    "intents.deleted": "the group's record is gone, the event is not said",
    "intents.attached": "an intent of its own is written, its group does not have it",
    "merger.answered": "all controllers have answered, nothing is committed",
    "merger.committed": "a decision is in the log, its event is not said",
    "merger.withdrawn": "a withdrawal is in the log",
    "merger.released": "a release is in the log",
    "ledger.snapshot": "a snapshot is written, the log is not purged",
    "inventory.numbered": "a cluster's number is durable, nobody has heard of the cluster",
    "inventory.kept": "a cluster's record is changed, the event is not said",
    "inventory.written": "Redis has what changed, the events are not said",
    "inventory.reported": "a report is in memory, it is not answered",
    "patcher.asked": "action controllers have answered, the desired state is not written",
    "patcher.desired": "the desired state is written, no agent has been told",
    "patcher.concluded": "a group's status is written, the event of its phase is not said",
    "patcher.confirmed": "a confirmation is written, it is not answered",
    "agent.made": "one of an app's first objects is made in a cluster, it may not be written down yet",
    "agent.recorded": "what is to be made in a cluster is written down there, no more than the first objects are made",
    "agent.applied": "the objects are applied, nobody knows",
    "agent.removed": "the objects are gone, nobody knows",
}


def _reached(point: str) -> None:
    """`DIR/<point>` holds what is to happen and at which time of coming here: `KILL 3`, `STOP 1`. Taking the file away
    decides between several that come at once; `DIR/<point>.<pid>` is left behind where it has happened."""
    armed = _directory / point
    mine = _directory / f"{point}.{os.getpid()}"
    try:
        armed.rename(mine)
    except FileNotFoundError:
        return
    name, count = mine.read_text().split()
    if int(count) > 1:
        mine.write_text(f"{name} {int(count) - 1}")
        with contextlib.suppress(FileNotFoundError):
            mine.rename(armed)
        return
    os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


def _off(point: str) -> None:
    pass


_directory = Path(os.environ.get(VARIABLE, ""))
reached = _reached if os.environ.get(VARIABLE) else _off
