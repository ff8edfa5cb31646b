"""Subjects of the bus that several workers use: patterns as constants, subjects of one controller, cluster or group as
functions."""

from __future__ import annotations

from moorage.model.names import cluster_tokens, group_tokens, token

INTENTS_APPLY = "moorage.intents.apply"
INTENTS_CHECK = "moorage.intents.check"
INTENTS_DELETE = "moorage.intents.delete"
INTENTS_ACT = "moorage.intents.act"
INTENTS_RESOURCE = "moorage.intents.resource"
GROUPS_DECIDE = "moorage.groups.decide"
GROUPS_STORED = "moorage.groups.stored"
GROUPS_WITHDRAW = "moorage.groups.withdraw"
MERGER_SIMULATE = "moorage.merger.simulate"
MERGER_WAITING = "moorage.merger.waiting"
MERGER_REMOVED = "moorage.merger.removed"
MERGER_REPLAY = "moorage.merger.replay"
MERGER_ENDED = "moorage.merger.ended"
PATCHER_DIFF = "moorage.patcher.diff"
CONTROLLERS_SET = "moorage.controllers.set"
DEVICES_ALGORITHM = "moorage.devices.algorithm"
DEVICES_MOVE = "moorage.devices.move"
CLUSTERS_SET = "moorage.clusters.set"
SIM_APPLY = "moorage.sim.apply"
SIM_FAULT = "moorage.sim.fault"
SIM_LIST = "moorage.sim.list"
LEDGER_COMMIT = "moorage.ledger.commit"
RECORDS = "moorage.records.*"
RECORDS_DECISIONS = "moorage.records.decisions"
RECORDS_HISTORY = "moorage.records.history"

#: The queue group of all mergers.
MERGERS = "mergers"

OF_CONTROLLER = "moorage.controllers.*."
CANDIDATES = OF_CONTROLLER + "candidates"
CANDIDATES_BATCH = CANDIDATES + ".many"
ACTIONS = OF_CONTROLLER + "actions"
REGISTER = OF_CONTROLLER + "register"
LEAVE = OF_CONTROLLER + "leave"
CHANGED = OF_CONTROLLER + "changed"

#: What `<provider>.<cluster>` of a row becomes: the tokens of a cluster, or wildcards.
OF_CLUSTER = "<provider>.<cluster>"
REPORTS = f"moorage.reports.{OF_CLUSTER}.*"
DESIRED_GET = f"moorage.desired.get.{OF_CLUSTER}"
DESIRED_CHANGED = f"moorage.desired.changed.{OF_CLUSTER}"
DESIRED_CONFIRM = f"moorage.desired.confirm.{OF_CLUSTER}"
MACHINES_APPLY = "moorage.machines.apply"
MACHINES_DELETE = "moorage.machines.delete"
MACHINES_LIST = "moorage.machines.list"
MACHINES_SYNC = f"moorage.machines.sync.{OF_CLUSTER}"
MACHINES_CHANGED = f"moorage.machines.changed.{OF_CLUSTER}"

INTENT_EVENTS = "moorage.events.intents.>"
FLEET_EVENTS = "moorage.events.fleet.>"
DEVICE_EVENTS = "moorage.events.fleet.devices.>"
DECISION_EVENTS = "moorage.events.decisions.>"
AUDIT_EVENTS = "moorage.events.audit.>"
CLASS_EVENTS = "moorage.events.classes.>"
MACHINE_EVENTS = "moorage.events.machines.>"
PLACEMENT_EVENTS = "moorage.events.placement.>"
EVENTS = "moorage.events.>"

REJECTED = "moorage.rejected.*"
EVERY_REJECTED = "moorage.rejected.>"
SERVICES = "$SRV.>"

#: Asks in one batch message. A larger batch would delay decisions that could go on.
MAX_BATCH = 8


def candidates(name: str) -> str:
    return f"moorage.controllers.{token(name)}.candidates"


def batch(subject: str) -> str:
    """Returns the subject for several asks of `subject` in one message."""
    return f"{subject}.many"


def actions(name: str) -> str:
    return f"moorage.controllers.{token(name)}.actions"


def controller(name: str, verb: str) -> str:
    """`verb` is register, leave or changed."""
    return f"moorage.controllers.{token(name)}.{verb}"


def reports(cluster: str, source: str) -> str:
    return f"moorage.reports.{cluster_tokens(cluster)}.{token(source)}"


def desired(verb: str, cluster: str) -> str:
    """`verb` is get, changed or confirm."""
    return f"moorage.desired.{verb}.{cluster_tokens(cluster)}"


def machine_event(change: str, name: str) -> str:
    return f"moorage.events.machines.{change}.{token(name)}"


def slot_event(change: str, cluster: str, machine: str) -> str:
    """Returns the subject of a change of the slots of a machine type, GROUP/TYPE, in a cluster."""
    group, _, name = machine.partition("/")
    return f"moorage.events.machines.{change}.{cluster_tokens(cluster)}.{token(group)}.{token(name)}"


def machines(verb: str, cluster: str) -> str:
    """`verb` is sync or changed."""
    return f"moorage.machines.{verb}.{cluster_tokens(cluster)}"


def intent_event(change: str, group: str) -> str:
    return f"moorage.events.intents.{change}.{group_tokens(group)}"


def fleet_event(change: str, cluster: str) -> str:
    return f"moorage.events.fleet.{change}.{cluster_tokens(cluster)}"


def decision_event(phase: str, group: str) -> str:
    return f"moorage.events.decisions.{phase}.{group_tokens(group)}"


def audit_event(outcome: str, who: str) -> str:
    return f"moorage.events.audit.{outcome}.{token(who)}"


def placement_event(kind: str, change: str, uuid: str) -> str:
    """`kind` is provider or allocation; `uuid` that of the provider or consumer."""
    return f"moorage.events.placement.{kind}.{change}.{token(uuid)}"


def class_event(change: str, name: str) -> str:
    """`change` is created, changed or deleted."""
    return f"moorage.events.classes.{change}.{token(name)}"


def rejected(subject: str) -> str:
    """Returns the subject under which a bad message that came on `subject` is kept."""
    return f"moorage.rejected.{subject.split('.', 2)[1] if subject.startswith('moorage.') else 'other'}"
