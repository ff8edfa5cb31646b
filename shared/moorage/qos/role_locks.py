"""Says how much of the lock of its zone a pod takes that is bound there, so that roles that do not share are apart also before the
node's agent has seen their pods.

Roles that share zones among themselves are a group, and each group counts its pods in digits of its own. What is taken of a lock so
tells whether pods of several groups are there. A pod that shares its zone with no pod of its own role takes all of it."""

from __future__ import annotations

from typing import Any, TypeVar

from .node_policy import ALIASES, NodePolicy, RoleSpec

#: The class of zones.
ROLE_LOCK = "ROLE_LOCK"
#: The bits in which a group counts its pods on a zone, and the groups of a node; pods of further ones share with nobody.
_BITS, GROUPS = 10, 3
LOCK_TOTAL = 1 << _BITS * GROUPS
_DIGIT = (1 << _BITS) - 1

#: An amount, or an array of amounts.
N = TypeVar("N", int, Any)


def shares_with_itself(name: str, role: RoleSpec) -> bool:
    return ALIASES.get(name, name) in {ALIASES.get(other, other) for other in role.shares_numa_with}


def lock_amount(policy: NodePolicy, name: str) -> int:
    """Returns how much of the lock of its zone a pod of a role takes."""
    groups: list[list[str]] = []
    for other, role in sorted(policy.roles.items()):
        if role.binds and shares_with_itself(other, role):
            own = next((group for group in groups if all(policy.shares_numa(other, one) for one in group)), None)
            if own is None:
                groups.append(own := [])
            own.append(other)
    number = next((i for i, group in enumerate(groups) if ALIASES.get(name, name) in group), GROUPS)
    return 1 << _BITS * min(number, GROUPS)


def fits_beside(taken: N, amount: int) -> Any:
    """Returns whether `amount` may be taken beside what is taken of a lock already: by pods of the same group only."""
    return taken & ~(amount * _DIGIT if amount < LOCK_TOTAL else 0) == 0


def is_mixed(taken: int) -> bool:
    """Returns whether pods of several groups have taken of a lock."""
    digits = (taken >> _BITS * number & _DIGIT for number in range(GROUPS))
    return taken < LOCK_TOTAL and sum(digit > 0 for digit in digits) > 1
