"""Reads and writes state files: JSON with a version and a checksum, so that what is torn, junk or newer is known."""

from __future__ import annotations

import re
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


_encode = msgspec.json.Encoder().encode
_version = msgspec.json.Decoder(_Envelope).decode
#: How every file ends. The checksum is that of all bytes before.
_END = re.compile(rb',"checksum":([0-9]{1,10})\}\n?\Z')
_END_BYTES = 30


def seal(content: dict[str, Any]) -> bytes:
    """Encodes the content, an object with at least one field, with its version and checksum."""
    body = _encode({**content, "version": VERSION})[:-1]
    return b'%b,"checksum":%d}' % (body, zlib.crc32(body))


def unseal(data: bytes) -> dict[str, Any]:
    """Returns the content; raises BadState where it is not what `seal` wrote."""
    if len(data) > MAX_BYTES:
        raise BadState(f"the state has {len(data)} bytes; at most {MAX_BYTES} are read")
    try:
        version = _version(data).version
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadState(f"the state is not JSON, or not of the expected form: {error}") from None
    if version > VERSION:
        raise BadState(f"the state has version {version}, which is newer than {VERSION}", newer=True)
    end = _END.search(data, max(0, len(data) - _END_BYTES))
    if not isinstance(content, dict) or version < 1 or end is None:
        raise BadState("the state has no version or no checksum")
    if zlib.crc32(data[: end.start()]) != int(end[1]):
        raise BadState("the state does not have the content that its checksum says")
    del content["version"], content["checksum"]
    return content
