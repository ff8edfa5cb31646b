"""The registry of controllers as pure changes: what registers, leaves, and what an operator sets, which always wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from moorage.model.controllers import Controller, Register, Setting
from moorage.model.names import is_name
from moorage.model.problems import Refused, Violation, invalid

from . import json_schemas
from .validate import APPLICATION, BUILTIN

_SETTABLE = ("deadline_ms", "policy", "weight", "placement", "actions")
MAX_DEADLINE_MS = 60_000
MAX_WEIGHT = 1000


def register(old: Controller | None, name: str, said: Register, others: Iterable[Controller] = ()) -> Controller:
    """`others`: who is there already; of one kind there is one schema."""
    owners = {kind: other for other in others if other.name != name for kind in other.kinds}
    _check(name, said.deadline_ms, said.weight, said.kinds, owners)
    given = Controller(
        name=name,
        deadline_ms=said.deadline_ms,
        policy=said.policy,
        weight=said.weight,
        placement=said.placement,
        actions=said.actions,
        kinds=said.kinds,
        steady=said.steady,
        together=said.together,
    )
    if old is None:
        return given
    return msgspec.structs.replace(given, pinned=old.pinned, **{field: getattr(old, field) for field in old.pinned})


def leave(old: Controller) -> Controller | None:
    """None: forget it. What an operator set outlives the controller, which then is asked nothing."""
    kept = [field for field in old.pinned if field not in ("placement", "actions")]
    if not kept:
        return None
    return msgspec.structs.replace(
        old, placement=False, actions=False, kinds={}, steady=False, together=False, pinned=kept
    )


def apply_setting(old: Controller | None, said: Setting) -> Controller:
    """Makes what is not there: so controllers that only speak NATS enter."""
    changes = {field: value for field in _SETTABLE if (value := getattr(said, field)) is not None}
    base = old if old is not None else Controller(name=said.name)
    pinned = sorted({*base.pinned, *changes})
    changed = msgspec.structs.replace(base, **changes, pinned=pinned)
    _check(changed.name, changed.deadline_ms, changed.weight, {}, {})
    return changed


def _check(
    name: str,
    deadline_ms: float,
    weight: float,
    kinds: dict[str, dict[str, Any]],
    owners: Mapping[str, Controller],
) -> None:
    errors = []
    if not is_name(name):
        errors.append(Violation(path="name", code="InvalidName", message=f"{name!r} cannot name a controller"))
    if not 1 <= deadline_ms <= MAX_DEADLINE_MS:
        errors.append(Violation(path="deadlineMs", code="OutOfRange", message=f"must be 1 to {MAX_DEADLINE_MS}"))
    if not 0 <= weight <= MAX_WEIGHT:
        errors.append(Violation(path="weight", code="OutOfRange", message=f"must be 0 to {MAX_WEIGHT}"))
    for kind, schema in kinds.items():
        if not kind.isalnum() or not kind.isascii() or kind == APPLICATION or kind == "Fleet" or kind in BUILTIN:
            message = "must be letters and digits, and no kind that is built in"
            errors.append(Violation(path=f"kinds.{kind}", code="InvalidName", message=message))
        elif wrong := json_schemas.wrong_with(schema):
            errors.append(Violation(path=f"kinds.{kind}", code="InvalidSchema", message=f"is no JSON Schema: {wrong}"))
        elif (other := owners.get(kind)) is not None and other.kinds[kind] != schema:
            message = f"{other.name} brings this kind, with another schema; leave it or agree with it"
            errors.append(Violation(path=f"kinds.{kind}", code="KindTaken", message=message))
    if errors:
        raise Refused(invalid(errors))
