"""Encodes and decodes batches of records, which explain decisions of the log."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from moorage.fleet import Excerpt
from moorage.model.records import DecisionRecord, RecordBatch

#: Batches are larger only if somebody else wrote them.
MAX_BATCH = 64 << 20

_encode = msgspec.msgpack.Encoder().encode
_batch = msgspec.msgpack.Decoder(RecordBatch).decode
_record = msgspec.msgpack.Decoder(DecisionRecord).decode
_excerpt = msgspec.msgpack.Decoder(Excerpt).decode


class NotRecorded(LookupError):
    """The message has no record of the decision."""


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def encode_batch(records: Mapping[str, bytes], answers: Mapping[str, bytes]) -> bytes:
    """Returns the message with these encoded records, by the ids of their decisions. It takes a while."""
    digests = {ident: digest(data) for ident, data in records.items()}
    return zlib.compress(_encode(RecordBatch(records=dict(records), digests=digests, answers=dict(answers))), 1)


def decode_batch(data: bytes) -> RecordBatch:
    """Raises msgspec.DecodeError on junk."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, MAX_BATCH)
    except zlib.error as error:
        raise msgspec.DecodeError(f"not compressed: {error}") from error
    if not unpacker.eof:
        raise msgspec.DecodeError("cut off, or too large")
    return _batch(content)


def record_of(batch: RecordBatch, decision: str) -> DecisionRecord:
    """Raises NotRecorded, or msgspec.DecodeError on junk."""
    if decision not in batch.records:
        raise NotRecorded(decision)
    return _record(batch.records[decision])


def excerpt_of(record: DecisionRecord) -> Excerpt:
    """Raises msgspec.DecodeError on junk."""
    return _excerpt(record.fleet)
