"""What this worker remembers of groups and of intents of their own, so that most reads are free: read once from the buckets,
then changed as they change, by this worker or another. A copy may be behind what is stored; who writes says from what."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from moorage.bus import Bucket, OrderedConsumer
from moorage.model.names import GroupName, group_tokens

from .core import transitions, validate
from .core.transitions import Head
from .core.validate import AcceptedIntent

_data = msgspec.json.Decoder(dict[str, Any])


class CachedGroup(NamedTuple):
    head: Head
    at: int  # the bucket's revision of it


class GroupCache:
    def __init__(self, groups: Bucket, documents: Bucket) -> None:
        self._groups, self._documents = groups, documents
        self.known: dict[str, CachedGroup] = {}  # by the group's tokens
        self.deleted: set[str] = set()  # keys that were seen to have been there before
        self.stale: set[str] = set()  # groups that may lag behind the intents that name them
        self.woken = asyncio.Event()
        self._intents: dict[str, tuple[AcceptedIntent, int]] = {}
        self._attached: dict[str, dict[str, AcceptedIntent]] = defaultdict(dict)
        self._mirrors: list[OrderedConsumer] = []

    async def start(self) -> None:
        self._mirrors.append(await self._documents.mirror(self._saw_document))
        self._mirrors.append(await self._groups.mirror(self._saw_group))

    def counts(self) -> dict[str, int]:
        return {"groups": len(self.known), "intents": len(self._intents)}

    # Groups

    def heads(self) -> Iterable[Head]:
        return (known.head for known in self.known.values())

    def head(self, group: str) -> Head | None:
        known = self.known.get(group_tokens(group))
        return None if known is None else known.head

    def at(self, head: Head) -> int:
        """The bucket's number of what it tells; one that never was where something newer is known."""
        known = self.known.get(group_tokens(head.group))
        return known.at if known is not None and known.head is head else -1

    def remember(self, tokens: str, known: CachedGroup) -> None:
        old = self.known.get(tokens)
        if old is None or known.at >= old.at:
            self.known[tokens] = known

    def forget(self, tokens: str, at: int = 0) -> None:
        """`at`: the bucket's number of its end; 0: it was seen to be gone just now."""
        old = self.known.get(tokens)
        if old is not None and (at == 0 or at > old.at):
            del self.known[tokens]
        self.deleted.add(tokens)

    def _saw_group(self, tokens: str, value: bytes | None, at: int) -> None:
        if value is None:
            self.forget(tokens, at)
            return
        known = self.known.get(tokens)
        if known is None or known.at < at:
            self.remember(tokens, CachedGroup(transitions.head_of(value), at))
            self.wake(str(GroupName.from_tokens(tokens)))

    # Intents of their own

    def of(self, group: str) -> list[AcceptedIntent]:
        own = self._attached.get(group)
        return list(own.values()) if own else []

    def of_with(self, given: AcceptedIntent) -> list[AcceptedIntent]:
        """Those of its group as they would be with this one."""
        return list({**self._attached.get(str(given.group), {}), given.key: given}.values())

    def has(self, given: AcceptedIntent) -> bool:
        old = self._attached.get(str(given.group), {}).get(given.key)
        return old is not None and old.document == given.document

    def hold(self, key: str, given: AcceptedIntent, at: int) -> str:
        self.drop(key)
        group = str(given.group)
        self._intents[key] = (given, at)
        self._attached[group][given.key] = given
        return group

    def drop(self, key: str) -> str:
        held = self._intents.pop(key, None)
        if held is None:
            return ""
        group = str(held[0].group)
        own = self._attached[group]
        own.pop(held[0].key, None)
        if not own:
            del self._attached[group]
        self.wake(group)
        return group

    def _saw_document(self, key: str, value: bytes | None, at: int) -> None:
        if value is None:
            group = self.drop(key)
        else:
            held = self._intents.get(key)
            if held is not None and held[1] >= at:
                return
            group = self.hold(key, validate.stored(_data.decode(value)), at)
        self.wake(group)

    # Groups that lag behind their intents

    def lags(self, group: str) -> bool:
        """Whether its record does not hold the intents that name it."""
        known = self.known.get(group_tokens(group)) if group else None
        return known is not None and known.head.attached != transitions.digest_of_raw(transitions.raw(self.of(group)))

    def wake(self, group: str) -> None:
        if self.lags(group):
            self.stale.add(group)
            self.woken.set()
