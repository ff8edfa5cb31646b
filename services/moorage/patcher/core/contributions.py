"""Combines action controllers' answers by their policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from moorage.model.controllers import Controller
from moorage.model.desired_state import ActionAnswer, Contribution
from moorage.model.problems import problem_in
from moorage.model.reasons import Reason, Warn

from .contribution_checks import disagreements, unusable

_answer = msgspec.json.Decoder(ActionAnswer).decode
#: Answers of all controllers together: an agent gets an app in one message, with its manifests and contributions.
MAX_BYTES = 4 << 20


class ActionResult(NamedTuple):
    """One controller's contributions, or the code and message of why there are none. `size`: of its answer, in bytes."""

    contributions: list[Contribution]
    code: str = ""
    message: str = ""
    size: int = 0


class Contributed(NamedTuple):
    """The changes of action controllers. With `reasons`, nothing may change on any cluster. `retry`: asking again may help."""

    contributions: list[Contribution]
    reasons: list[Reason]
    warnings: list[Warn]
    retry: bool = False


def read_answer(name: str, data: bytes, manifests: Mapping[str, list[dict[str, Any]]]) -> ActionResult:
    if problem_in(data) is not None:
        return _error(f"{name} refused the request")
    try:
        answer = _answer(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return _error(f"the answer of {name} cannot be decoded: {error}")
    if answer.error:
        return _error(f"{name}: {answer.error}")
    # The author is the controller that was asked, whatever its answer says.
    contributions = [msgspec.structs.replace(contribution, by=name) for contribution in answer.contributions]
    if reasons := unusable(manifests, contributions):
        return _error(reasons[0].message)
    return ActionResult(contributions, size=len(data))


def _error(message: str) -> ActionResult:
    return ActionResult([], "ControllerError", message)


def combine(
    controllers: Iterable[Controller], answers: Mapping[str, ActionResult], last: Mapping[str, list[Contribution]]
) -> Contributed:
    """Joins the contributions of all controllers. `last`: their last answers to the same question, for `stale-ok`."""
    contributions: list[Contribution] = []
    reasons: list[Reason] = []
    warnings: list[Warn] = []
    retry = False
    for controller in controllers:
        name, answer = controller.name, answers[controller.name]
        if not answer.code:
            contributions += answer.contributions
        elif controller.policy == "required":
            reasons.append(Reason(code=answer.code, by=name, message=answer.message))
            retry = True
        elif controller.policy == "stale-ok" and name in last:
            contributions += last[name]
            warnings.append(Warn(code=answer.code, message=f"{answer.message}; its last answer is used"))
        else:
            warnings.append(Warn(code=answer.code, message=f"{answer.message}; it is left out"))
    size = sum(answer.size for answer in answers.values())
    if size > MAX_BYTES:
        largest = max(answers, key=lambda name: answers[name].size)
        message = f"contributions are {size} bytes, most of them from {largest}; at most {MAX_BYTES}"
        reasons.append(Reason(code="PatchTooLarge", by=largest, message=message))
    reasons += disagreements(contributions)
    return Contributed(contributions, reasons, warnings, retry)
