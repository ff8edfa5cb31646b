"""Keeps groups and standalone intents in memory, so that most reads cost nothing: read from the buckets once, then updated
with every change. The cache may be behind the buckets, so every write names the revision it was made from."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from moorage.bus import Bucket, OrderedConsumer
from moorage.model.names import GroupName, group_tokens

from .core import transitions, validate
from .core.transitions import Head
from .core.validate import AcceptedIntent

_data = msgspec.json.Decoder(dict[str, Any])

#: Bytes of stored records that are kept as well, so that most updates need not read what they replace.
MAX_RECORDS = 8 << 20


class CachedGroup(NamedTuple):
    head: Head
    at: int  # the bucket's revision of the record


class NewestRecords:
    """Keeps the stored records that were written or read last, up to so many bytes."""

    def __init__(self, limit: int = MAX_RECORDS) -> None:
        self._limit, self._size = limit, 0
        self._records: OrderedDict[str, tuple[int, bytes]] = OrderedDict()

    def put(self, tokens: str, at: int, value: bytes) -> None:
        self.drop(tokens)
        self._records[tokens] = at, value
        self._size += len(value)
        while self._size > self._limit:
            self.drop(next(iter(self._records)))

    def get(self, tokens: str, at: int) -> bytes | None:
        """Returns the group's record at this revision of the bucket, if it is kept."""
        kept_at, value = self._records.get(tokens, (0, None))
        return value if kept_at == at else None

    def drop(self, tokens: str) -> None:
        self._size -= len(self._records.pop(tokens, (0, b""))[1])


class GroupCache:
    def __init__(self, groups: Bucket, documents: Bucket) -> None:
        self._groups, self._documents = groups, documents
        self.known: dict[str, CachedGroup] = {}  # by the group's tokens
        self.records = NewestRecords()
        self._unfinished: set[str] = set()  # groups, by their tokens, of which a step waits for what others do
        self.stale: set[str] = set()  # groups whose record may lack intents that name them
        self.stale_added = asyncio.Event()
        self._intents: dict[str, tuple[AcceptedIntent, int]] = {}
        self._attached: dict[str, dict[str, AcceptedIntent]] = defaultdict(dict)
        self._mirrors: list[OrderedConsumer] = []

    async def start(self) -> None:
        self._mirrors.append(await self._documents.mirror(self._on_document))
        self._mirrors.append(await self._groups.mirror(self._on_group))

    def counts(self) -> dict[str, int]:
        return {"groups": len(self.known), "intents": len(self._intents)}

    # Groups

    def heads(self) -> Iterable[Head]:
        return (known.head for known in self.known.values())

    def unfinished(self) -> list[Head]:
        """Returns the groups that are deleted once nothing of them runs, and those whose predecessor ends once they run."""
        return [self.known[tokens].head for tokens in self._unfinished]

    def head(self, group: str) -> Head | None:
        known = self.known.get(group_tokens(group))
        return None if known is None else known.head

    def revision_of(self, head: Head) -> int:
        """Returns the bucket's revision of this head; -1, which never matches, where a newer one is known."""
        known = self.known.get(group_tokens(head.group))
        return known.at if known is not None and known.head is head else -1

    def remember(self, tokens: str, known: CachedGroup, value: bytes) -> None:
        """`value`: the record that is stored."""
        old = self.known.get(tokens)
        if old is None or known.at >= old.at:
            self.known[tokens] = known
            self.records.put(tokens, known.at, value)
            head = known.head
            waits = head.leaving or (head.succeeds and head.state == "Instantiated")
            (self._unfinished.add if waits else self._unfinished.discard)(tokens)

    def forget(self, tokens: str, at: int = 0) -> None:
        """`at`: the bucket's revision of the deletion; 0: a read just now found nothing."""
        old = self.known.get(tokens)
        if old is not None and (at == 0 or at > old.at):
            del self.known[tokens]
            self.records.drop(tokens)
            self._unfinished.discard(tokens)

    def _on_group(self, tokens: str, value: bytes | None, at: int) -> None:
        if value is None:
            self.forget(tokens, at)
            return
        known = self.known.get(tokens)
        if known is None or known.at < at:
            self.remember(tokens, CachedGroup(transitions.head_of(value), at), value)
            self.mark_if_behind(str(GroupName.from_tokens(tokens)))

    # Standalone intents

    def intents_of(self, group: str) -> list[AcceptedIntent]:
        attached = self._attached.get(group)
        return list(attached.values()) if attached else []

    def intents_with(self, intent: AcceptedIntent) -> list[AcceptedIntent]:
        """Returns the intents of the group as they would be with this one."""
        return list({**self._attached.get(str(intent.group), {}), intent.key: intent}.values())

    def has_intent(self, intent: AcceptedIntent) -> bool:
        known = self._attached.get(str(intent.group), {}).get(intent.key)
        return known is not None and known.document == intent.document

    def remember_intent(self, key: str, intent: AcceptedIntent, at: int) -> str:
        """Returns the group of the intent."""
        self.forget_intent(key)
        group = str(intent.group)
        self._intents[key] = (intent, at)
        self._attached[group][intent.key] = intent
        return group

    def forget_intent(self, key: str) -> str:
        """Returns the group of the intent, or "" where it was not known."""
        known = self._intents.pop(key, None)
        if known is None:
            return ""
        intent = known[0]
        group = str(intent.group)
        attached = self._attached[group]
        attached.pop(intent.key, None)
        if not attached:
            del self._attached[group]
        self.mark_if_behind(group)
        return group

    def _on_document(self, key: str, value: bytes | None, at: int) -> None:
        if value is None:
            group = self.forget_intent(key)
        else:
            known = self._intents.get(key)
            if known is not None and known[1] >= at:
                return
            group = self.remember_intent(key, validate.read_stored(_data.decode(value)), at)
        self.mark_if_behind(group)

    # Groups that are behind their intents

    def is_behind(self, group: str) -> bool:
        """Returns whether the group's record lacks intents that name it, or has others."""
        known = self.known.get(group_tokens(group)) if group else None
        if known is None:
            return False
        return known.head.attached != transitions.digest_of_intents(transitions.stored_intents(self.intents_of(group)))

    def mark_if_behind(self, group: str) -> None:
        if self.is_behind(group):
            self.stale.add(group)
            self.stale_added.set()
