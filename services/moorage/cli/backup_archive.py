"""The backup file: a tar of stream snapshots with a manifest that has the size and checksum of each, so that a damaged or
truncated file is detected before any of it is used."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from .exit_codes import USAGE, Failure

FORMAT = 1
_MANIFEST, _SUM = "backup.json", "backup.sha256"
_CHUNK_BYTES = 128 << 10


def write(out: IO[bytes], about: Mapping[str, Any], parts: Mapping[str, IO[bytes]]) -> None:
    """Writes an archive. `about` is added to the manifest unchanged, beside each part's size and checksum."""
    entries: dict[str, dict[str, Any]] = {
        name: {"size": _size(part), "sha256": _checksum(part)} for name, part in parts.items()
    }
    manifest = json.dumps({"format": FORMAT, **about, "parts": entries}, indent=1).encode()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        _add(tar, _MANIFEST, io.BytesIO(manifest), len(manifest))
        digest = hashlib.sha256(manifest).hexdigest().encode()
        _add(tar, _SUM, io.BytesIO(digest), len(digest))
        for name, part in parts.items():
            part.seek(0)
            _add(tar, name, part, entries[name]["size"])


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    tar.addfile(info, content)


def _size(part: IO[bytes]) -> int:
    return part.seek(0, io.SEEK_END)


def _checksum(part: IO[bytes]) -> str:
    part.seek(0)
    digest = hashlib.sha256()
    while chunk := part.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


class Archive:
    """An archive opened for reading. Opening verifies all checksums."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with tarfile.open(path) as tar:
                manifest = _content(tar, _MANIFEST)
                if hashlib.sha256(manifest).hexdigest().encode() != _content(tar, _SUM):
                    raise Failure(f"{path} is damaged: the checksum of its manifest does not match")
                self.about: dict[str, Any] = json.loads(manifest)
                if self.about["format"] != FORMAT:
                    raise Failure(
                        f"{path} has format {self.about['format']}, but this release reads format {FORMAT}; use the "
                        f"release that wrote it ({self.about.get('release', 'a newer one')})"
                    )
                for name, expected in self.about["parts"].items():
                    part = tar.extractfile(name)
                    if part is None or _size(part) != expected["size"] or _checksum(part) != expected["sha256"]:
                        raise Failure(f"{path} is damaged: the checksum of {name} does not match")
        except FileNotFoundError:
            raise Failure(f"file '{path}' does not exist", USAGE) from None
        except (tarfile.TarError, KeyError, EOFError, ValueError) as error:
            raise Failure(f"{path} is not a backup, or is damaged or truncated: {error}") from error
        except OSError as error:
            raise Failure(f"cannot read {path}: {error.strerror or error}") from error

    def chunks(self, name: str) -> Iterator[bytes]:
        with tarfile.open(self._path) as tar:
            part = tar.extractfile(name)
            assert part is not None
            while chunk := part.read(_CHUNK_BYTES):
                yield chunk

    def content(self, name: str) -> bytes:
        return b"".join(self.chunks(name))


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    part = tar.extractfile(name)
    return b"" if part is None else part.read()
