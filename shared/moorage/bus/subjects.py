"""The one table of subjects: documentation, permissions and tests are made from it."""

from __future__ import annotations

from typing import NamedTuple

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
PATCHER_DIFF = "moorage.patcher.diff"
CONTROLLERS_SET = "moorage.controllers.set"
CLUSTERS_SET = "moorage.clusters.set"
SIM_APPLY = "moorage.sim.apply"
SIM_FAULT = "moorage.sim.fault"
SIM_LIST = "moorage.sim.list"
LEDGER_COMMIT = "moorage.ledger.commit"
MERGERS = "mergers"

BUILTIN_CONTROLLERS = ("hpa", "labels", "affinity")
FOLLOWERS = ("merger", "patcher", "gateway", *BUILTIN_CONTROLLERS)
KINDS = ("admin", "intents", "inventory", "merger", "patcher", "gateway", "sim", *BUILTIN_CONTROLLERS, "controller")

BUCKETS = (
    "moorage-groups",
    "moorage-revisions",
    "moorage-documents",
    "moorage-resources",
    "moorage-controllers",
    "moorage-clusters",
    "moorage-leases",
    "moorage-desired",
    "moorage-status",
    "moorage-tokens",
)
OBJECTS = ("moorage-snapshots", "moorage-sim")
LOGS = {
    "MOORAGE_LEDGER": LEDGER_COMMIT,
    "MOORAGE_EVENTS": "moorage.events.>",
    "MOORAGE_REJECTED": "moorage.rejected.>",
}


def candidates(name: str) -> str:
    return f"moorage.controllers.{token(name)}.candidates"


def together(subject: str) -> str:
    """Where several questions of a subject go in one message."""
    return f"{subject}.many"


def actions(name: str) -> str:
    return f"moorage.controllers.{token(name)}.actions"


def controller(name: str, verb: str) -> str:
    """register, leave or changed."""
    return f"moorage.controllers.{token(name)}.{verb}"


def reports(cluster: str, source: str) -> str:
    return f"moorage.reports.{cluster_tokens(cluster)}.{token(source)}"


def desired(verb: str, cluster: str) -> str:
    """get, changed or confirm."""
    return f"moorage.desired.{verb}.{cluster_tokens(cluster)}"


def intent_event(change: str, group: str) -> str:
    return f"moorage.events.intents.{change}.{group_tokens(group)}"


def fleet_event(change: str, cluster: str) -> str:
    return f"moorage.events.fleet.{change}.{cluster_tokens(cluster)}"


def decision_event(phase: str, group: str) -> str:
    return f"moorage.events.decisions.{phase}.{group_tokens(group)}"


def audit_event(outcome: str, who: str) -> str:
    return f"moorage.events.audit.{outcome}.{token(who)}"


def rejected(subject: str) -> str:
    """Where a message that came on this subject is kept."""
    return f"moorage.rejected.{subject.split('.', 2)[1] if subject.startswith('moorage.') else 'other'}"


class Subject(NamedTuple):
    """`says` may publish, `hears` may subscribe. In an agent's rows `<provider>.<cluster>` are its own."""

    pattern: str
    payload: str
    says: tuple[str, ...]
    hears: tuple[str, ...]
    about: str
    request: bool = False


_EVERY_CONTROLLER = (*BUILTIN_CONTROLLERS, "controller")

TABLE: tuple[Subject, ...] = (
    Subject(INTENTS_APPLY, "a document", ("gateway",), ("intents",), "store a document and act on it", True),
    Subject(INTENTS_CHECK, "a document", ("gateway",), ("intents",), "the same, nothing stored", True),
    Subject(INTENTS_DELETE, "kind, project, name", ("gateway",), ("intents",), "remove what is terminated", True),
    Subject(INTENTS_ACT, "group, verb", ("gateway",), ("intents",), "a step of a group's life", True),
    Subject(INTENTS_RESOURCE, "Change", ("gateway",), ("intents",), "make, change or remove a `/v2` resource", True),
    Subject(GROUPS_DECIDE, "Decide", ("intents",), ("merger",), "a revision wants a decision"),
    Subject(GROUPS_STORED, "Stored", ("intents",), ("merger",), "the revision of a hint that came ahead is durable"),
    Subject(GROUPS_WITHDRAW, "Withdraw", ("intents",), ("merger",), "a revision is to end"),
    Subject(MERGER_SIMULATE, "Decide", ("gateway",), ("merger",), "decide without committing", True),
    Subject(MERGER_WAITING, "Attempt", ("merger",), ("merger",), "a group could not be placed"),
    Subject(MERGER_REMOVED, "claims, cluster, asOf", ("patcher",), ("merger",), "an agent confirmed a removal"),
    Subject(PATCHER_DIFF, "group", ("gateway",), ("patcher",), "manifests and what is applied, per cluster", True),
    Subject(CONTROLLERS_SET, "Setting", ("gateway",), ("intents",), "an operator edits the registry", True),
    Subject("moorage.controllers.*.candidates", "Ask", ("merger", "gateway"), _EVERY_CONTROLLER, "which clusters may take it", True),
    Subject("moorage.controllers.*.candidates.many", "Asks", ("merger",), _EVERY_CONTROLLER, "the same about several groups", True),
    Subject("moorage.controllers.*.actions", "ActionAsk", ("patcher",), _EVERY_CONTROLLER, "what to write into manifests", True),
    Subject("moorage.controllers.*.register", "Register", _EVERY_CONTROLLER, ("intents",), "a controller starts", True),
    Subject("moorage.controllers.*.leave", "Register", _EVERY_CONTROLLER, ("intents",), "a controller ends", True),
    Subject("moorage.controllers.*.changed", "-", _EVERY_CONTROLLER, ("merger",), "what I refused may be asked again"),
    Subject("moorage.reports.<provider>.<cluster>.*", "Report", ("sim", "agent"), ("inventory",), "nodes and pods", True),
    Subject("moorage.desired.get.<provider>.<cluster>", "DesiredAsk", ("sim", "agent"), ("patcher",), "what should run", True),
    Subject("moorage.desired.changed.<provider>.<cluster>", "-", ("patcher",), ("sim", "agent"), "ask again"),
    Subject("moorage.desired.confirm.<provider>.<cluster>", "Confirm", ("sim", "agent"), ("patcher",), "what became of it", True),
    Subject(CLUSTERS_SET, "cluster, labels, cordoned, forget", ("gateway",), ("inventory",), "an operator edits a cluster", True),
    Subject(SIM_APPLY, "Fleet", ("gateway",), ("sim",), "make the simulated fleet equal to this", True),
    Subject(SIM_FAULT, "cluster, fault, seconds", ("gateway",), ("sim",), "misbehave", True),
    Subject(SIM_LIST, "-", ("gateway",), ("sim",), "the simulated clusters", True),
    Subject("moorage.events.intents.>", "Event", ("intents",), ("gateway", "controller"), "documents and life cycle"),
    Subject("moorage.events.fleet.>", "Event", ("inventory",), ("gateway", "controller"), "clusters come, change, go"),
    Subject("moorage.events.decisions.>", "Event", ("merger", "patcher"), ("gateway", "intents", "patcher", "controller"), "what became of groups"),
    Subject("moorage.events.audit.>", "Event", ("gateway",), ("gateway",), "who asked for which change, and its outcome"),
    Subject(LEDGER_COMMIT, "Commit", ("merger",), FOLLOWERS, "the decision log (a stream)"),
    Subject("moorage.rejected.*", "what was refused, why", KINDS, ("gateway",), "bad messages, kept for a while (a stream)"),
    Subject("$SRV.>", "NATS micro service", ("gateway",), KINDS, "who is there and how they are", True),
)  # fmt: skip


def markdown() -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Subjects",
        "",
        "Made from the table in `moorage.bus.subjects` (`make docs`), as are the permissions of every user; `moorage",
        "subjects` prints it too. In name tokens each byte outside `[A-Za-z0-9_-]` becomes `=XX`: `v1.0` is `v1=2E0`. The",
        "payload is JSON. *agent* stands for one user per cluster, who may use only its own `<provider>.<cluster>`.",
        "",
        "Documents and commands have no unknown fields: 400, each named by its path. Beside their own they may have `id`,",
        "`cause` (the id of what set them off) and `traceparent`. Readers of events ignore what they do not know. Whatever",
        'refuses on `moorage.intents.*` answers `{"accepted": false, "problem": {…}}`, elsewhere `{"problem": {…}}`, a',
        "problem as over REST.",
        "",
        "| subject | payload | who says it | who hears it | about |",
        "|---|---|---|---|---|",
    ]
    for row in TABLE:
        how = " (request)" if row.request else ""
        says, hears = (", ".join(names) if names != KINDS else "everyone" for names in (row.says, row.hears))
        lines.append(f"| `{row.pattern}`{how} | {row.payload} | {says} | {hears} | {row.about} |")
    return "\n".join(lines) + "\n"
