"""Reads and writes state files: JSON with a version and a checksum, so that what is torn, junk or newer is known."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

VERSION = 1
#: A state file of a node with 500 pods is far below this; a larger one is not read.
MAX_BYTES = 64 << 20


class BadState(ValueError):
    """Raised for a state file that cannot be used. `newer`: a later version wrote it, so that it should be kept aside."""

    def __init__(self, message: str, *, newer: bool = False) -> None:
        super().__init__(message)
        self.newer = newer


class _Envelope(msgspec.Struct):
    version: int = 0
    checksum: int = -1


_encode = msgspec.json.Encoder(order="deterministic").encode


def seal(content: dict[str, Any]) -> bytes:
    """Encodes the content with its version and checksum."""
    content = {**content, "version": VERSION}
    return _encode({**content, "checksum": zlib.crc32(_encode(content))})


def unseal(data: bytes) -> dict[str, Any]:
    """Returns the content; raises BadState where it is not what `seal` wrote."""
    if len(data) > MAX_BYTES:
        raise BadState(f"the state has {len(data)} bytes; at most {MAX_BYTES} are read")
    try:
        content = msgspec.json.decode(data)
        envelope = msgspec.convert(content, _Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadState(f"the state is not JSON, or not of the expected form: {error}") from None
    if envelope.version > VERSION:
        raise BadState(f"the state has version {envelope.version}, which is newer than {VERSION}", newer=True)
    if not isinstance(content, dict) or envelope.version < 1:
        raise BadState("the state has no version")
    checksum = content.pop("checksum", None)
    if zlib.crc32(_encode(content)) != checksum:
        raise BadState("the state does not have the content that its checksum says")
    return content
