"""Names of the key-value buckets, streams and object stores, and how their owners declare them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

GROUPS = "moorage-groups"
REVISIONS = "moorage-revisions"
DOCUMENTS = "moorage-documents"
RESOURCES = "moorage-resources"
CLASSES = "moorage-classes"
MACHINES = "moorage-machines"
CONTROLLERS = "moorage-controllers"
CLUSTERS = "moorage-clusters"
LEASES = "moorage-leases"
DESIRED = "moorage-desired"
STATUS = "moorage-status"
TOKENS = "moorage-tokens"
PROVIDERS = "moorage-providers"
UNUSABLE_NODES = "moorage-unusable-nodes"
#: Keys in there of what clients of the Placement interface added to nodes and parts of clusters.
ADDED_PREFIX = "added."

SNAPSHOTS = "moorage-snapshots"
SIMULATED_FLEET = "moorage-sim"

LEDGER = "MOORAGE_LEDGER"
EVENTS = "MOORAGE_EVENTS"
REJECTED = "MOORAGE_REJECTED"
RECORDS = "MOORAGE_RECORDS"


class Backup(IntEnum):
    """The order in which stores are copied in a backup: effects before causes, so that the copy looks as if the mesh had been killed
    after a cause and before its effect."""

    EVENTS = 1
    STATUS = 2
    DECISIONS = 3
    GROUPS = 4
    DOCUMENTS = 5
    NEVER = 6


class Bucket(NamedTuple):
    """A key-value bucket. `rebuildable`: its content can be made again, so writes need no fsync each. `atomic`: several
    keys can change in one batch. `purged`: its owner removes keys that nobody follows without a trace."""

    name: str
    rebuildable: bool = False
    atomic: bool = False
    purged: bool = False
    backup: Backup = Backup.DOCUMENTS

    @property
    def stream(self) -> str:
        return f"KV_{self.name}"


class ObjectStore(NamedTuple):
    """A store for values larger than one message."""

    name: str
    backup: Backup = Backup.DOCUMENTS

    @property
    def stream(self) -> str:
        return f"OBJ_{self.name}"


class Stream(NamedTuple):
    """A stream of everything published on `subject`. Zero means no limit; a limited stream drops its oldest messages and
    is written without an fsync each. With a `setting`, the variables MOORAGE_<setting>_BYTES and MOORAGE_<setting>_AGE of
    whoever creates the stores replace its limits."""

    name: str
    subject: str
    max_messages: int = 0
    max_bytes: int = 0
    max_age_days: int = 0
    setting: str = ""
    backup: Backup = Backup.EVENTS

    @property
    def stream(self) -> str:
        return self.name

    @property
    def limited(self) -> bool:
        return bool(self.max_messages or self.max_bytes or self.max_age_days)


Store = Bucket | ObjectStore | Stream
