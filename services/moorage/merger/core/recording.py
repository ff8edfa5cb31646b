"""Records what a proposal was made from. Taking it must cost a decision little; encoding it can wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from moorage.candidates.choice import MAX_STEPS as CHOICE_STEPS
from moorage.fit import PackingSolutions
from moorage.fit.budget import BudgetExceeded
from moorage.fit.cluster_nodes import MAX_STEPS as PACKING_STEPS
from moorage.fleet import Fleet, FleetCopy, copy_of
from moorage.ledger import Ledger
from moorage.ledger.records import digest
from moorage.model.candidates import Answer
from moorage.model.claims import Decision, Slot
from moorage.model.controllers import Controller
from moorage.model.groups import Revision
from moorage.model.records import DecisionRecord, RecordedChoice, RecordedPacking, RecordedReply

from .free_capacity import summed_resources
from .propose import TRIES, TriedChoices
from .responses import ControllerResults, Replies

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode

LIMITS = {"choices": TRIES, "steps of a choice": CHOICE_STEPS, "steps of a packing": PACKING_STEPS}


@dataclass(slots=True)
class Recording:
    """Holds what one proposal was made from, copied where it would change."""

    decision: Decision
    revision: Revision
    replies: Replies
    named: list[str]  # clusters that answers and warnings name, among other words
    tried: TriedChoices
    fleet: FleetCopy
    own: Ledger | None
    solutions: PackingSolutions

    @classmethod
    def take(
        cls,
        decision: Decision,
        revision: Revision,
        results: ControllerResults,
        tried: TriedChoices,
        fleet: Fleet,
        ledger: Ledger,
        solutions: PackingSolutions,
    ) -> Recording:
        """Copies what will change. Nothing may have changed since the decision was proposed."""
        own = ledger.excerpt(decision.group, revision.succession.group if revision.succession is not None else "")
        held = [a.claim for a in own.claims.values()] if own is not None else []
        rows_of = {cid for choice in tried.choices for clusters in choice.clusters for cid in clusters}
        rows_of |= {cid for claim in held if (cid := fleet.ids.get(claim.cluster)) is not None}
        slots = [slot for claim in held for slot in claim.slots]
        copied = copy_of(
            fleet,
            rows_of=rows_of,
            resources=dict.fromkeys(_resources(revision, slots)),
            sums=summed_resources(revision),
            claims={claim.id for claim in held},
            epochs={answer.epoch for answer in results.answers.values()},
        )
        named = [name for answer in results.answers.values() for name in _named_clusters(answer)]
        # Warnings name clusters that were left out.
        named += [word for warning in decision.warnings for word in warning.message.replace(",", " ").split()]
        return cls(decision, revision, results.replies, named, tried, copied, own, solutions)

    @property
    def size(self) -> int:
        """Returns about how many bytes of memory it keeps."""
        answers = sum(len(reply.data) for reply in self.replies.replies.values())
        columns = 2 * len(self.fleet.sums) + sum(len(choice.basis.values) for choice in self.tried.choices)
        return 8192 + (2 + 8 * columns) * len(self.fleet.known) + 64 * len(self.fleet.flags) + answers

    def answers(self) -> dict[str, bytes]:
        """Returns the controllers' answers by their hashes. Records of one batch share them."""
        replies = (self.replies.replies[controller.name].data for controller in self.replies.controllers)
        stale = (self.replies.stale.get(controller.name) for controller in self.replies.controllers)
        return {digest(data): data for data in (*replies, *stale) if data}

    def encode(self, release: str) -> bytes:
        """Returns the record encoded. It names its answers by their hashes."""
        # Intents are left out: no step after the controllers reads them.
        revision = msgspec.structs.replace(self.revision, intents=[])
        asked = self.replies
        tried = [
            RecordedChoice(clusters=t.clusters, failed=t.failed, ranked=[t.ranked(a) for a in range(len(t.clusters))])
            for t in self.tried.choices
        ]
        # From these clusters alone the same choices follow.
        deciding = {cid for choice in tried for values in choice.ranked for cid, _ in values}
        deciding.update(cid for choice in tried for clusters in choice.clusters for cid in clusters)
        deciding.update(part.id for part in self.fleet.clusters)  # where the group has something, it has more room
        for choice in self.tried.choices:
            for pool in choice.basis.pools.values():
                deciding.update(pool.tolist())
        fleet = self.fleet.encode(sorted(deciding), self.named, _encode_json(revision.apps))
        record = DecisionRecord(
            release=release,
            decision=self.decision,
            revision=revision,
            fleet=msgspec.Raw(_encode(fleet)),
            controllers=[_without_kinds(controller) for controller in asked.controllers],
            replies={c.name: self._reply(c.name) for c in asked.controllers},
            tried=tried,
            own=b"" if self.own is None else self.own.encode(),
            packings=list(_packings(self.solutions)),
            limits=LIMITS,
        )
        return _encode(record)

    def _reply(self, name: str) -> RecordedReply:
        reply, stale = self.replies.replies[name], self.replies.stale.get(name)
        return RecordedReply(
            outcome=reply.outcome,
            took_ms=reply.took_ms,
            error=reply.error,
            answer=digest(reply.data) if reply.data else "",
            stale=digest(stale) if stale else "",
        )


def _resources(revision: Revision, held: list[Slot]) -> Iterator[str]:
    for app in revision.apps:
        for shape in app.shapes:
            yield from shape.resources
            for optional in shape.optional:
                yield from optional.resources
    for slot in held:
        yield from slot.resources


def _without_kinds(controller: Controller) -> Controller:
    return msgspec.structs.replace(controller, kinds={})


def _named_clusters(answer: Answer) -> Iterator[str]:
    """Yields the clusters that an answer names. Most answers have numbers."""
    sets = [group.clusters for app in answer.apps.values() for group in app.groups]
    sets += [level.clusters for app in answer.apps.values() for level in app.levels]
    sets += [conflict.clusters for conflict in answer.conflicts]
    for one in sets:
        if isinstance(one, list):
            yield from one


def _packings(solutions: PackingSolutions) -> Iterator[RecordedPacking]:
    for key, found in solutions.solved.items():
        if isinstance(found, BudgetExceeded):
            yield RecordedPacking(problem=key, gave_up=found.seconds)
        else:
            yield RecordedPacking(problem=key, packed=None if found is None else found.tobytes())
