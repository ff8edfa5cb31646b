"""Failpoints: named places in the code where a test kills or stops the process that reaches them.

A test that acts on a message on the bus could only do so "about now". Without MOORAGE_FAILPOINTS in the environment a
failpoint costs the call of an empty function.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

VARIABLE = "MOORAGE_FAILPOINTS"

#: What has happened at each failpoint, and what has not.
POINTS: dict[str, str] = {
    "intents.kept": "the older revision is kept, the group's record is not written",
    "intents.stored": "the group's record is written, neither the event nor the hint to decide is published",
    "intents.deleted": "the group's record is deleted, the event is not published",
    "intents.class.stored": "a resource class is stored, its event is not published",
    "intents.class.deleted": "a resource class is deleted, its event is not published",
    "intents.attached": "a standalone intent is written, its group does not have it",
    "merger.answered": "all controllers have answered, nothing is committed",
    "merger.committed": "a decision is in the log, its event is not published",
    "merger.withdrawn": "a withdrawal is in the log",
    "merger.released": "a release is in the log",
    "merger.settling": "the settlement of a cluster is computed, it is not in the log",
    "merger.settled": "a settlement is in the log, the groups that it displaced do not wait for a decision",
    "ledger.snapshot": "a snapshot is written, the log is not purged",
    "inventory.numbered": "a cluster's id is durable, the cluster is not announced",
    "inventory.kept": "a cluster's record is changed, the event is not published",
    "inventory.written": "changes are written to Redis, their events are not published",
    "inventory.reported": "a report is in memory, it is not answered",
    "patcher.asked": "action controllers have answered, the desired state is not written",
    "patcher.desired": "the desired state is written, no agent has been notified",
    "patcher.concluded": "a group's status is written, the event of its phase is not published",
    "patcher.confirmed": "a confirmation is written, it is not answered",
    "placement.committed": "an allocation is in the log, it is not answered",
    "placement.reshaped": "an exchange of inventories is in the log, the records of its providers are not written",
    "placement.recorded": "records of providers or names are written, nothing is answered",
    "agent.made": "one of an app's first objects is created in a cluster, it may not be recorded yet",
    "agent.recorded": "what is to be created in a cluster is recorded there, only the first objects are created",
    "agent.opened": "a pod is pinned to its slot and its gate is open, nobody knows it yet",
    "agent.allocated": "a claim of a pod has its devices, the pod's gate is closed",
    "agent.vacated": "a pod whose device failed is deleted",
    "slots.committed": "grants of slots are in the log, their events are not published, and no cluster is told",
    "machines.granted": "a guest is to get a slot, its grant is not stored in the cluster",
    "machines.scaled": "grants are stored with the number of reservations, no reservation left yet",
    "machines.vacated": "a reservation is gone, its guest is not let in",
    "machines.opened": "a guest is pinned and its gate is off, nobody knows it yet",
    "machines.cleaned": "one Node has other labels and taints, the rest may not",
    "agent.applied": "the objects are applied, nothing is confirmed",
    "node.state.written": "a state file's new content is written beside it, nothing is synced or renamed",
    "node.state.renamed": "a state file is replaced, its directory is not synced",
    "node.allocated": "plugins have allocated, the checkpoint is not written",
    "node.admitted": "the checkpoint has a pod, the runtime has not been asked to create anything",
    "node.shrunk": "containers are shrunk and read back, none has grown yet",
    "agent.removed": "the objects are deleted, nothing is confirmed",
}


def _reached(point: str) -> None:
    """Sends the process the signal in the file `DIR/<point>`, if it exists: `KILL 3` kills at the third time.

    Renaming the file decides between several processes that arrive at once; `DIR/<point>.<pid>` stays where it happened.
    """
    armed = _directory / point
    taken = _directory / f"{point}.{os.getpid()}"
    try:
        armed.rename(taken)
    except FileNotFoundError:
        return
    name, count = taken.read_text().split()
    if int(count) > 1:
        taken.write_text(f"{name} {int(count) - 1}")
        with contextlib.suppress(FileNotFoundError):
            taken.rename(armed)
        return
    os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


def _off(point: str) -> None:
    pass


_directory = Path(os.environ.get(VARIABLE, ""))
reached = _reached if os.environ.get(VARIABLE) else _off
