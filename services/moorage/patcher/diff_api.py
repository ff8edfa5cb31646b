"""Serves `moorage diff`: a group's manifests beside the final objects of each cluster."""

from __future__ import annotations

import msgspec

from moorage.bus import Incoming
from moorage.ledger import LedgerFollower
from moorage.model.desired_state import DiffAsk, DiffReply
from moorage.model.problems import Refused, not_found

from .core.desired_state import diff_items
from .group_queue import GroupQueue

#: A larger reply is truncated.
REPLY_BYTES = 4 << 20
_ask = msgspec.json.Decoder(DiffAsk).decode
_encode = msgspec.json.Encoder().encode


class DiffApi:
    def __init__(self, groups: GroupQueue, follower: LedgerFollower) -> None:
        self._groups, self._follower = groups, follower

    async def diff(self, incoming: Incoming) -> DiffReply:
        group = _ask(incoming.data).group
        decision, desired = self._follower.ledger.standing.get(group), self._groups.desired.get(group)
        head = self._groups.heads.get(group)
        if head is None and decision is None:
            raise Refused(not_found(f"group {group}"))
        revision = decision.revision if decision is not None else head.revision if head is not None else 0
        reply = DiffReply(group=group, revision=revision)
        if decision is None or desired is None or desired.decision != decision.id:
            return reply
        record = await self._groups.fetch(group, decision.revision)
        if record is None:
            return reply
        reply.decision, reply.reasons = decision.id, desired.reasons
        size = 0
        for item in diff_items(record, decision, desired):
            size += len(_encode(item))
            if size > REPLY_BYTES:
                reply.truncated = True
                break
            reply.items.append(item)
        return reply
