"""Reads the controllers' replies: the answers that count, the outcome of each controller, and what prevents a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
import numpy as np

from moorage.candidates import DecodedAnswer, Mask, WeightedAnswer, decode_answer, unpack
from moorage.fleet import Fleet
from moorage.fleet.delta import Epoch, parse_epoch
from moorage.model.candidates import Answer, Asked, WireSet
from moorage.model.controllers import Controller
from moorage.model.problems import problem_in
from moorage.model.reasons import Reason, Warn
from moorage.model.replies import Reply

#: Larger answers are refused. A hundred thousand clusters by name are 2 MB.
MAX_ANSWER = 4 << 20
MAX_REASONS = 64
SAMPLES = 5
MAX_WARNINGS = 32
#: The relative weight of a priority. It only decides between scores that are equal otherwise.
_TIE = 1e-6


#: Stands for the reply of a controller that the group does not concern. It allows every cluster.
NOT_ASKED = Reply("skipped", b"", 0.0)

_decode = msgspec.json.Decoder(Answer).decode


def without_clusters(answer: DecodedAnswer, joined: Mask) -> DecodedAnswer:
    """Removes clusters that joined after a controller computed its answer: it has not decided about them."""
    apps = {}
    for number, app in answer.apps.items():
        allowed = ~joined if app.allowed is None else app.allowed & ~joined
        groups = [group._replace(mask=group.mask & ~joined) for group in app.groups]
        apps[number] = app._replace(allowed=allowed, groups=groups)
    return answer._replace(apps=apps)


class Replies(NamedTuple):
    """The replies by controller. `stale` has the last answers to the same question."""

    apps: Sequence[str]
    controllers: Sequence[Controller]
    replies: Mapping[str, Reply]
    stale: Mapping[str, bytes]


class AskedAt(NamedTuple):
    """The state that the merger had seen when it asked: the fleet's epoch, and the last commit of the decision log."""

    epoch: Epoch
    sequence: int

    def is_ahead_of(self, answer: Answer) -> bool:
        """Returns whether the answer was computed before the controller had seen as much. One that does not say what it was
        computed from is taken to be current."""
        epoch = parse_epoch(answer.epoch)
        return (epoch is not None and epoch < self.epoch) or 0 < answer.sequence < self.sequence


@dataclass(slots=True)
class ControllerResults:
    """The answers of a group's controllers. `membership` is the fleet's when the answers were read; they do not cover clusters
    that joined later."""

    replies: Replies
    membership: int
    weighted: list[WeightedAnswer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    missing: list[Reason] = field(default_factory=list)  # required controllers without an answer prevent a decision
    warnings: list[Warn] = field(default_factory=list)
    fresh: dict[str, bytes] = field(
        default_factory=dict
    )  # answers that may be used again, because the policy is stale-ok


def _read_answer(data: bytes, apps: Sequence[str], fleet: Fleet) -> tuple[Answer, DecodedAnswer] | str:
    """Returns the answer, or why it counts as none."""
    if len(data) > MAX_ANSWER:
        return f"the answer has {len(data)} bytes; at most {MAX_ANSWER} are read"
    try:
        if (problem := problem_in(data)) is not None:  # decoded as an answer it would allow every cluster
            return problem.detail or problem.title
        answer = _decode(data)
        if answer.error:
            return answer.error[:500]
        decoded = decode_answer(answer, apps, fleet.ids, fleet.size)
        joined = fleet.joined_after(answer.epoch)
        return answer, decoded if joined is None else without_clusters(decoded, joined)
    except (msgspec.DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        return f"the answer cannot be read: {error}"[:500]


def gather(replies: Replies, fleet: Fleet) -> ControllerResults:
    results = ControllerResults(replies, fleet.membership)
    priorities: dict[str, int] = {}
    for controller in replies.controllers:
        name, reply = controller.name, replies.replies[controller.name]
        outcome, error, data = reply.outcome, reply.error, reply.data
        read: tuple[Answer, DecodedAnswer] | str = error
        if outcome == "answered":
            read = _read_answer(data, replies.apps, fleet)
            if isinstance(read, str):
                outcome, error = "error", read
        if outcome != "answered" and controller.policy == "stale-ok" and name in replies.stale:
            stale = _read_answer(replies.stale[name], replies.apps, fleet)
            if not isinstance(stale, str):
                read, outcome = stale, "stale"
        results.asked.append(
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
            answer, decoded = read
            results.weighted.append(WeightedAnswer(name, controller.weight, decoded))
            priorities[name] = controller.priority
            results.answers[name] = answer
            results.warnings.extend(answer.warnings[:MAX_WARNINGS])
            if outcome == "answered" and controller.policy == "stale-ok":
                results.fresh[name] = data
        elif outcome == "skipped":
            continue
        elif controller.policy == "required":
            code = "ControllerTimeout" if outcome == "timeout" else "ControllerError"
            results.missing.append(Reason(code=code, by=name, message=error))
        else:
            results.warnings.append(Warn(code="ControllerLeftOut", message=f"{name}: {error}"))
    results.weighted = break_ties(results.weighted, priorities)
    return results


def refresh(results: ControllerResults, fleet: Fleet) -> ControllerResults:
    """Returns the same answers read against the clusters that exist now."""
    return results if results.membership == fleet.membership else gather(results.replies, fleet)


def break_ties(weighted: list[WeightedAnswer], priorities: Mapping[str, int]) -> list[WeightedAnswer]:
    """Lets the higher priority decide between equal weighted sums. It adds so little weight that no other order changes."""
    ranks = {priority: rank for rank, priority in enumerate(sorted(set(priorities.values())))}
    if len(ranks) < 2:
        return weighted
    return [replace(w, weight=w.weight * (1 + _TIE * ranks[priorities[w.name]])) for w in weighted]


def steady_confinement(
    results: ControllerResults, apps: int, controllers: Mapping[str, Controller]
) -> list[bytes | None]:
    """Returns per app, as packed bits, the clusters that all steady controllers allow; None if none of them restricts it."""
    masks = _steady_masks(results, apps, controllers)
    return [None if mask is None else np.packbits(mask).tobytes() for mask in masks]


def _steady_masks(
    results: ControllerResults, apps: int, controllers: Mapping[str, Controller]
) -> Sequence[Mask | None]:
    steady = [w for w in results.weighted if (known := controllers.get(w.name)) is not None and known.steady]
    found: list[Mask | None] = []
    for number in range(apps):
        answers = [app for w in steady if (app := w.answer.apps.get(number)) is not None]
        masks = [app.allowed for app in answers if app.allowed is not None]
        found.append(np.logical_and.reduce(masks) if masks else None)
    return found


def placement_masks(results: ControllerResults, fleet: Fleet) -> list[Mask]:
    """Returns per app the clusters that its placement leaves: those that all steady controllers allow. Reasons are about
    these only."""
    controllers = {controller.name: controller for controller in results.replies.controllers}
    masks = _steady_masks(results, len(results.replies.apps), controllers)
    return [fleet.known if mask is None else fleet.known & resized(mask, fleet.size) for mask in masks]


def resized(mask: Mask, size: int) -> Mask:
    """Returns the mask for a fleet that may have grown since: no controller allowed what joined."""
    return mask if len(mask) == size else np.resize(np.append(mask[:size], np.zeros(size, np.bool_)), size)


def collect_reasons(results: ControllerResults, fleet: Fleet) -> list[Reason]:
    """Returns the reasons that controllers gave, with their names and apps and bounded in number, after those for controllers
    that exclude clusters without a reason. Only clusters that the app's placement leaves count, except in the reasons of
    the controllers that exclude the others."""
    found: list[Reason] = []
    left = dict(zip(results.replies.apps, placement_masks(results, fleet), strict=True))
    steady = {controller.name for controller in results.replies.controllers if controller.steady}
    for weighted in results.weighted:
        name = weighted.name
        for number, decoded in weighted.answer.apps.items():
            app = results.replies.apps[number]
            answer = results.answers[name].apps.get(app)
            if decoded.allowed is None or (answer is not None and answer.reasons):
                continue
            excluded = fleet.usable_clusters[: len(decoded.allowed)] & ~decoded.allowed
            excluded = excluded if name in steady else excluded & left[app][: len(excluded)]
            excluded = excluded & ~_explained(results, app, fleet)[: len(excluded)]
            if clusters := int(np.count_nonzero(excluded)):
                message = f"{name} excludes {app} from {clusters} of {len(fleet.ids)} clusters without a reason"
                found.append(
                    Reason(
                        code="ControllerExcludes",
                        message=message,
                        app=app,
                        clusters=clusters,
                        samples=fleet.clusters.named(excluded, SAMPLES),
                        by=name,
                    )
                )
    for name, answered in results.answers.items():
        for app, given in answered.apps.items():
            for reason in given.reasons[:MAX_REASONS]:
                named = msgspec.structs.replace(reason, by=reason.by or name, app=reason.app or app)
                about = named if name in steady or app not in left else _within(named, left[app], fleet)
                found += [about] if about is not None else []
    return found[: 4 * MAX_REASONS]


def _explained(results: ControllerResults, app: str, fleet: Fleet) -> Mask:
    """Returns the clusters that reasons of any controller about the app are about."""
    found: Mask = np.zeros(fleet.size, np.bool_)
    for answer in results.answers.values():
        answered = answer.apps.get(app)
        for wire in answered.excluded.values() if answered is not None else ():
            if (mask := decoded_set(wire, fleet)) is not None:
                found |= mask
    return found


def decoded_set(wire: WireSet, fleet: Fleet) -> Mask | None:
    """Decodes a set that only explains; None if it is malformed. The answer itself was decoded strictly before."""
    try:
        return unpack(wire, fleet.ids, fleet.size)
    except ValueError:
        return None


def _within(reason: Reason, left: Mask, fleet: Fleet) -> Reason | None:
    """Returns the reason without samples outside `left`; None if it is about such clusters only. Not every controller heeds
    `explain_within`."""
    samples = [
        name for name in reason.samples if (cid := fleet.ids.get(name)) is None or (cid < len(left) and left[cid])
    ]
    outside = len(reason.samples) - len(samples)
    if not outside:
        return reason
    if not samples and reason.clusters <= outside:
        return None
    clusters = min(reason.clusters - outside, int(np.count_nonzero(left)))
    return msgspec.structs.replace(reason, samples=samples, clusters=clusters)


def order_reasons(reasons: Iterable[Reason], blocking: Sequence[str]) -> list[Reason]:
    """Sorts the reasons: first those about the apps that block, in their order, and last what a placement leaves out where
    it leaves enough for the app."""
    rank = {app: number for number, app in enumerate(blocking)}
    last = len(rank)

    def key(reason: Reason) -> tuple[int, int]:
        named = [rank[app] for app in reason.app.split() if app in rank]
        if reason.code == "NoClusters":
            return (-1, 0)
        excludes = reason.code == "PlacementExcludes"
        if not named:
            # Reasons about the fleet say more than those about apps that do not block.
            return (last + (1 if reason.app else 0) + (1 if excludes else 0), 0)
        return (min(named), 1 if excludes else 0)

    return sorted(reasons, key=key)
