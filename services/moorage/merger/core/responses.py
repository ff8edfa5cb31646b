"""What came back from the controllers: opinions that count, how each did, and what stands in the way. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import numpy as np

from moorage.candidates import DecodedAnswer, Mask, WeightedAnswer, decode_answer
from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Asked
from moorage.model.controllers import Controller
from moorage.model.problems import problem_in
from moorage.model.reasons import Reason, Warn
from moorage.model.replies import Reply

#: A hundred thousand clusters by name are 2 MB; whatever is larger than this is no answer.
MAX_ANSWER = 4 << 20
MAX_REASONS = 64
SAMPLES = 5
MAX_WARNINGS = 32
#: Scores are told apart by less than a tenth of this.
_TIE = 1e-6


_decode = msgspec.json.Decoder(Answer).decode


def without_clusters(opinion: DecodedAnswer, late: Mask) -> DecodedAnswer:
    """Clusters that joined after a controller looked: not having objected to them is no word about them."""
    apps = {}
    for number, said in opinion.apps.items():
        allowed = ~late if said.allowed is None else said.allowed & ~late
        groups = [group._replace(mask=group.mask & ~late) for group in said.groups]
        apps[number] = said._replace(allowed=allowed, groups=groups)
    return opinion._replace(apps=apps)


class Replies(NamedTuple):
    """What came from whom. `stale`: the last answers to the same question."""

    apps: Sequence[str]
    controllers: Sequence[Controller]
    replies: Mapping[str, Reply]
    stale: Mapping[str, bytes]


@dataclass(slots=True)
class ControllerResults:
    """`membership`: of the fleet when the answers were read; clusters that join later are not in them."""

    replies: Replies
    membership: int
    weighted: list[WeightedAnswer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    missing: list[Reason] = field(default_factory=list)  # required ones that gave no answer: nothing is decided
    warnings: list[Warn] = field(default_factory=list)
    fresh: dict[str, bytes] = field(default_factory=dict)  # what may be used again where the policy is stale-ok


def _read_answer(data: bytes, apps: Sequence[str], fleet: Fleet) -> tuple[Answer, DecodedAnswer] | str:
    if len(data) > MAX_ANSWER:
        return f"the answer has {len(data)} bytes; at most {MAX_ANSWER} are read"
    try:
        if (problem := problem_in(data)) is not None:  # decoded as an answer it would allow everything
            return problem.detail or problem.title
        said = _decode(data)
        if said.error:
            return said.error[:500]
        opinion = decode_answer(said, apps, fleet.ids, fleet.size)
        late = fleet.joined_after(said.epoch)
        return said, opinion if late is None else without_clusters(opinion, late)
    except (msgspec.DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        return f"the answer cannot be read: {error}"[:500]


def gather(heard: Replies, fleet: Fleet) -> ControllerResults:
    apps, controllers, replies, stale = heard
    got = ControllerResults(heard, fleet.membership)
    priorities: dict[str, int] = {}
    for controller in controllers:
        name, reply = controller.name, replies[controller.name]
        outcome, error, data = reply.outcome, reply.error, reply.data
        read: tuple[Answer, DecodedAnswer] | str = error
        if outcome == "answered":
            read = _read_answer(data, apps, fleet)
            if isinstance(read, str):
                outcome, error = "error", read
        if outcome != "answered" and controller.policy == "stale-ok" and name in stale:
            again = _read_answer(stale[name], apps, fleet)
            if not isinstance(again, str):
                read, outcome = again, "stale"
        got.asked.append(
            Asked(
                name=name,
                outcome=outcome,  # type: ignore[arg-type]
                took_ms=round(reply.took_ms, 3),
                deadline_ms=controller.deadline_ms,
                policy=controller.policy,
                error=error,
            )
        )
        if not isinstance(read, str):
            answer, opinion = read
            got.weighted.append(WeightedAnswer(name, controller.weight, opinion))
            priorities[name] = controller.priority
            got.answers[name] = answer
            got.warnings.extend(answer.warnings[:MAX_WARNINGS])
            if outcome == "answered" and controller.policy == "stale-ok":
                got.fresh[name] = data
        elif controller.policy == "required":
            code = "ControllerTimeout" if outcome == "timeout" else "ControllerError"
            got.missing.append(Reason(code=code, by=name, message=error))
        else:
            got.warnings.append(Warn(code="ControllerLeftOut", message=f"{name}: {error}"))
    got.weighted = break_ties(got.weighted, priorities)
    return got


def refresh(got: ControllerResults, fleet: Fleet) -> ControllerResults:
    """The same answers over the clusters that there are now."""
    return got if got.membership == fleet.membership else gather(got.replies, fleet)


def break_ties(voices: list[WeightedAnswer], priorities: Mapping[str, int]) -> list[WeightedAnswer]:
    """Where the weighted sums are the same, who has the higher priority decides: it weighs so little more that no other
    order changes."""
    ranks = {priority: rank for rank, priority in enumerate(sorted(set(priorities.values())))}
    if len(ranks) < 2:
        return voices
    return [replace(v, weight=v.weight * (1 + _TIE * ranks[priorities[v.name]])) for v in voices]


def steady_confinement(got: ControllerResults, apps: int, controllers: Mapping[str, Controller]) -> list[bytes | None]:
    """Per app the clusters to which those whose answers are steady confine it, as packed bits; None: no one does."""
    found: list[bytes | None] = []
    steady = [v for v in got.weighted if (known := controllers.get(v.name)) is not None and known.steady]
    for app in range(apps):
        masks = [said.allowed for v in steady if (said := v.answer.apps.get(app)) is not None]
        some = [mask for mask in masks if mask is not None]
        found.append(np.packbits(np.logical_and.reduce(some)).tobytes() if some else None)
    return found


def collect_reasons(got: ControllerResults, fleet: Fleet) -> list[Reason]:
    """What the controllers gave as reasons, each with its name and its app, bounded; and who allows less than every
    cluster without a word."""
    found: list[Reason] = []
    for voice in got.weighted:
        for number, opinion in voice.answer.apps.items():
            app = got.replies.apps[number]
            said = got.answers[voice.name].apps.get(app)
            if opinion.allowed is None or (said is not None and said.reasons):
                continue
            excluded = fleet.usable_clusters[: len(opinion.allowed)] & ~opinion.allowed
            if clusters := int(np.count_nonzero(excluded)):
                message = (
                    f"{voice.name} does not allow {app} on {clusters} of {len(fleet.ids)} clusters and does not say why"
                )
                found.append(
                    Reason(
                        code="ControllerExcludes",
                        message=message,
                        app=app,
                        clusters=clusters,
                        samples=fleet.clusters.named(excluded, SAMPLES),
                        by=voice.name,
                    )
                )
    for name, answer in got.answers.items():
        for app, given in answer.apps.items():
            found += [
                msgspec.structs.replace(reason, by=reason.by or name, app=reason.app or app)
                for reason in given.reasons[:MAX_REASONS]
            ]
    return found[: 4 * MAX_REASONS]
