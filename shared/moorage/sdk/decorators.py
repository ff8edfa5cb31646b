"""What a file of controllers declares: `@controller` and `@action` functions, collected until they are run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from moorage.model.candidates import Answer, Ask
from moorage.model.controllers import Policy
from moorage.model.desired import ActionAsk, Contribution
from moorage.model.names import is_name

from .answers import Allowed

if TYPE_CHECKING:
    from moorage.fleet import Fleet

Said = Mapping[str, Allowed] | Answer
Candidates = Callable[[Ask, "Fleet"], Said | Awaitable[Said]]
Actions = Callable[[ActionAsk, "Fleet"], list[Contribution] | Awaitable[list[Contribution]]]


class Declared(NamedTuple):
    """One controller: what it answers and how it wants to be asked until an operator says otherwise."""

    name: str
    deadline: float = 0.5
    policy: Policy = "optional"
    weight: float = 1
    kinds: dict[str, dict[str, Any]] = {}
    capacity: bool = False
    steady: bool = False
    candidates: Candidates | None = None
    actions: Actions | None = None


Alongside = Callable[[], Awaitable[None]]

_declared: dict[str, Declared] = {}
_alongside: list[Alongside] = []


def _declare(name: str, **changes: Any) -> None:
    if not is_name(name):
        raise ValueError(f"{name!r} cannot name a controller: letters, digits, '-', '_', '.', at most 128")
    before = _declared.get(name, Declared(name))
    half = "candidates" if "candidates" in changes else "actions"
    if getattr(before, half) is not None:
        raise ValueError(f"two functions answer {half} for controller {name!r}")
    _declared[name] = before._replace(**changes)


def controller(
    name: str,
    *,
    deadline: float = 0.5,
    policy: Policy = "optional",
    weight: float = 1,
    kinds: dict[str, dict[str, Any]] | None = None,
    capacity: bool = False,
    steady: bool = False,
) -> Callable[[Candidates], Candidates]:
    """A placement controller: a function of an ask and the fleet that says which clusters may take each app; an async one
    where it waits for something.

    `kinds` registers kinds of intent of its own, with the JSON Schema of their spec. `capacity=True` counts claims into
    `fleet.free()`; without it, free is what the clusters report. `steady=True`: where it allows an app depends on
    documents and the labels of clusters alone, so that nobody asks it again for room where it allows nothing, until it
    says `changed`.
    """

    def declare(function: Candidates) -> Candidates:
        _declare(
            name,
            candidates=function,
            deadline=deadline,
            policy=policy,
            weight=weight,
            kinds=kinds or {},
            capacity=capacity,
            steady=steady,
        )
        return function

    return declare


def action(name: str) -> Callable[[Actions], Actions]:
    """An action controller: says what is written into the manifests of a decision."""

    def declare(function: Actions) -> Actions:
        _declare(name, actions=function)
        return function

    return declare


def alongside(function: Alongside) -> Alongside:
    """An async function that runs as long as the controllers of its file do: it watches what their answers depend on, and
    says `changed(NAME)`. Should it fail, the process ends, and whoever keeps it running starts it again."""
    _alongside.append(function)
    return function


def companions() -> list[Alongside]:
    """Everything declared to run alongside so far; and forget it."""
    found = list(_alongside)
    _alongside.clear()
    return found


def declared() -> list[Declared]:
    """Everything declared so far; and forget it."""
    found = list(_declared.values())
    _declared.clear()
    return found
