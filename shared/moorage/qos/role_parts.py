"""Says by which classes and traits of zones the mesh knows what roles may go where, for node agents that report them and for pod
templates that ask for them."""

from __future__ import annotations

import re

from moorage.model.part_names import CUSTOM
from moorage.model.part_reports import RoleKind
from moorage.model.part_requests import RoleAsk
from moorage.model.shapes import EXCLUSIVE

from .node_policy import ALIASES, BUILT_IN_ROLES, RoleSpec
from .role_locks import LOCK_TOTAL, ROLE_LOCK

#: The suffix of the group of parts that pods with roles ask for. Documents cannot name it.
ROLE_GROUP = "moorage.dev/role"
_OTHERS = re.compile("[^A-Z0-9_]", re.ASCII)


def role_trait(role: str, namespace: str = "") -> str:
    """Returns the trait of zones that are open to a role; with a namespace, to its pods there only."""
    found = f"ROLE_{_word(ALIASES.get(role, role))}"
    return f"{found}_IN_{_word(namespace)}" if namespace else found


def known_trait(trait: str) -> str:
    """Returns the trait of all zones of nodes that know the role, also where the zone is not open to it now."""
    return f"KNOWS_{trait}"


def _word(text: str) -> str:
    return _OTHERS.sub("_", text.upper())[:100]


def reported(name: str) -> str:
    """Returns the name of a class or trait as reports have it."""
    return CUSTOM + name


def group_of_resource(resource: str) -> str:
    """Returns the suffix of the group of an extended resource of a pod with a role."""
    return f"{ROLE_GROUP}/{resource}"


def role_amounts(
    ask: RoleAsk, kind: RoleKind, *, counts_exclusive: bool = False, lock: int = LOCK_TOTAL
) -> dict[str, int]:
    """Returns what a pod takes of its zone, where its role gets this. `counts_exclusive`: the zone tells CPUs that pods have alone;
    `lock`: the whole of its lock."""
    found: dict[str, int] = {}
    if kind.exclusive and kind.one_zone:
        found["cpu"] = ask.cores * 1000
        if counts_exclusive:
            found[EXCLUSIVE] = ask.cores
    if kind.binds:
        found |= ask.memory
        found[ROLE_LOCK] = (kind.lock or 1) if kind.shares else lock
    return {name: amount for name, amount in found.items() if amount}


def known_role(name: str) -> RoleSpec | None:
    """Returns a role that all nodes have; what others mean is known to nodes only."""
    return BUILT_IN_ROLES.get(ALIASES.get(name, name))
