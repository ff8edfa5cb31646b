"""Decorators that declare controllers. What a file declares is collected until it is run."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moorage.model.candidates import Answer, Ask
from moorage.model.controllers import Policy
from moorage.model.desired_state import ActionAsk, Contribution
from moorage.model.names import is_name

from .answers import Allowed

if TYPE_CHECKING:
    from moorage.fleet import Fleet

Result = Mapping[str, Allowed] | Answer
Candidates = Callable[[Ask, "Fleet"], Result | Awaitable[Result]]
Actions = Callable[[ActionAsk, "Fleet"], list[Contribution] | Awaitable[list[Contribution]]]
Background = Callable[[], Awaitable[None]]
_STEADY = "moorage.sdk: steady is called static now"


@dataclass(frozen=True)
class Declared:
    """One controller: its functions, and its deadline, policy and weight until an operator sets others."""

    name: str
    deadline: float = 0.5
    policy: Policy = "optional"
    weight: float = 1
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    capacity: bool = False
    static: bool = False
    concerns: Sequence[str] = ()
    action_concerns: Sequence[str] = ()
    prepare: bool = False
    candidates: Candidates | None = None
    actions: Actions | None = None
    steady: InitVar[bool | None] = None

    def __post_init__(self, steady: bool | None) -> None:
        if steady is not None:
            # Frames: this method, the generated __init__, the caller.
            warnings.warn(_STEADY, DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "static", steady)


_declared: dict[str, Declared] = {}
_background: list[Background] = []


def _declare(name: str, **changes: Any) -> None:
    if not is_name(name):
        raise ValueError(f"{name!r} cannot name a controller: letters, digits, '-', '_', '.', at most 128")
    before = _declared.get(name, Declared(name))
    half = "candidates" if "candidates" in changes else "actions"
    if getattr(before, half) is not None:
        raise ValueError(f"two functions answer {half} for controller {name!r}")
    _declared[name] = replace(before, **changes)


def controller(
    name: str,
    *,
    deadline: float = 0.5,
    policy: Policy = "optional",
    weight: float = 1,
    kinds: dict[str, dict[str, Any]] | None = None,
    capacity: bool = False,
    static: bool = False,
    concerns: Sequence[str] = (),
    prepare: bool = False,
    steady: bool | None = None,
) -> Callable[[Candidates], Candidates]:
    """Declares a placement controller: a function of an ask and the fleet that returns which clusters may take each app.
    It is async if it waits for something.

    `kinds` registers kinds of intent with the JSON Schema of their spec. `capacity=True` counts claims into
    `fleet.free()`; without it, free is what the clusters report. `static=True` promises that the allowed clusters depend
    on documents and on labels of clusters only: a group that waits is not asked about again because of free capacity in
    clusters that the controller excludes, until it calls `changed`. `steady` is the old name of `static`.
    `concerns` promises that it allows every cluster for groups that have none of these: kinds of intents, or `parts`, `devices`,
    `machines` that their pods ask for. It is not asked about them.
    `prepare=True` calls a plain function again with the newest asks when the fleet changed and nothing is asked, so that what it
    caches by the shapes of pods is current when the next ask comes; what it returns then is not used.
    """
    if steady is not None:
        warnings.warn(_STEADY, DeprecationWarning, stacklevel=2)
        static = steady

    def declare(function: Candidates) -> Candidates:
        if prepare and inspect.iscoroutinefunction(function):
            raise ValueError(f"controller {name!r}: only a plain function can be called to prepare; this one is async")
        _declare(
            name,
            candidates=function,
            deadline=deadline,
            policy=policy,
            weight=weight,
            kinds=kinds or {},
            capacity=capacity,
            static=static,
            concerns=concerns,
            prepare=prepare,
        )
        return function

    return declare


def action(name: str, *, concerns: Sequence[str] = ()) -> Callable[[Actions], Actions]:
    """Declares an action controller: a function that returns what to write into the manifests of a decision. It has nothing to
    write for groups without one of its `concerns`, if it names any, and is not asked about them."""

    def declare(function: Actions) -> Actions:
        _declare(name, actions=function, action_concerns=concerns)
        return function

    return declare


def background(function: Background) -> Background:
    """Declares an async function that runs as long as the controllers of its file: it watches what their answers depend
    on and calls `changed(NAME)`. If it fails, the controllers leave the registry and the process ends, for its supervisor to start it again."""
    _background.append(function)
    return function


def alongside(function: Background) -> Background:
    """The old name of `background`."""
    warnings.warn("moorage.sdk: alongside is called background now", DeprecationWarning, stacklevel=2)
    return background(function)


def take_background() -> list[Background]:
    """Returns the background functions that were declared since the last call."""
    found = list(_background)
    _background.clear()
    return found


def declared() -> list[Declared]:
    """Returns the controllers that were declared since the last call."""
    found = list(_declared.values())
    _declared.clear()
    return found
