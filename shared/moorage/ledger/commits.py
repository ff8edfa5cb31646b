"""Encodes and decodes commits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from moorage.model.base import Message
from moorage.model.claims import Commit, Decision, Entry, Reassignment, Release, Withdrawal


class _CommitOfLists(Message, kw_only=True):
    """A commit as it was written before entries had a kind: one list for each kind."""

    by: str = ""
    withdrawals: list[Withdrawal] = []
    releases: list[Release] = []
    decisions: list[Decision] = []
    reassigns: list[Reassignment] = []


class _RawCommit(Message, kw_only=True):
    """A commit of encoded entries. Each entry is encoded once, to know its size before the batch is composed."""

    by: str = ""
    at: float = 0.0
    entries: list[msgspec.Raw] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Commit).decode
_decode_lists = msgspec.json.Decoder(_CommitOfLists).decode


def decode_commit(data: bytes) -> Commit:
    """Reads a commit of any age. Raises msgspec.DecodeError on junk."""
    commit = _decode(data)
    if not commit.entries:  # an older commit, or an empty one
        lists = _decode_lists(data)
        commit.entries = [*lists.withdrawals, *lists.releases, *lists.decisions, *lists.reassigns]
    return commit


def encode_entry(entry: Entry) -> msgspec.Raw:
    return msgspec.Raw(_encode(entry))


def encode_commit(ident: str, by: str, entries: Sequence[msgspec.Raw] = (), at: float = 0.0) -> bytes:
    return _encode(_RawCommit(id=ident, by=by, at=at, entries=list(entries)))
