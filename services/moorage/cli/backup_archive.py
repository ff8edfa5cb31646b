"""The file of a back-up: a tar of the streams as the broker gives them, with what they were and a checksum of each, so that
a damaged or truncated one is known before anything of it is used."""

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
_PIECE = 128 << 10


def write(out: IO[bytes], about: Mapping[str, Any], parts: Mapping[str, IO[bytes]]) -> None:
    """`about` goes into the manifest as it is, beside each part's size and checksum."""
    listed: dict[str, dict[str, Any]] = {
        name: {"size": _size(part), "sha256": _sum(part)} for name, part in parts.items()
    }
    manifest = json.dumps({"format": FORMAT, **about, "parts": listed}, indent=1).encode()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        _add(tar, _MANIFEST, io.BytesIO(manifest), len(manifest))
        digest = hashlib.sha256(manifest).hexdigest().encode()
        _add(tar, _SUM, io.BytesIO(digest), len(digest))
        for name, part in parts.items():
            part.seek(0)
            _add(tar, name, part, listed[name]["size"])


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    tar.addfile(info, content)


def _size(part: IO[bytes]) -> int:
    return part.seek(0, io.SEEK_END)


def _sum(part: IO[bytes]) -> str:
    part.seek(0)
    digest = hashlib.sha256()
    while piece := part.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


class Archive:
    """Opened: every byte has been compared with its checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with tarfile.open(path) as tar:
                manifest = _content(tar, _MANIFEST)
                if hashlib.sha256(manifest).hexdigest().encode() != _content(tar, _SUM):
                    raise Failure(f"{path} is damaged: its manifest is not what was written")
                self.about: dict[str, Any] = json.loads(manifest)
                if self.about["format"] != FORMAT:
                    raise Failure(
                        f"{path} has format {self.about['format']}, this release reads {FORMAT}: use the release that "
                        f"wrote it, {self.about.get('release', 'a newer one')}"
                    )
                for name, told in self.about["parts"].items():
                    part = tar.extractfile(name)
                    if part is None or _size(part) != told["size"] or _sum(part) != told["sha256"]:
                        raise Failure(f"{path} is damaged: {name} is not what was written")
        except FileNotFoundError:
            raise Failure(f"there is no file '{path}'", USAGE) from None
        except (tarfile.TarError, KeyError, EOFError, ValueError) as wrong:
            raise Failure(f"{path} is not a back-up, or is damaged or truncated: {wrong}") from wrong
        except OSError as wrong:
            raise Failure(f"cannot read {path}: {wrong.strerror or wrong}") from wrong

    def chunks(self, name: str) -> Iterator[bytes]:
        with tarfile.open(self._path) as tar:
            part = tar.extractfile(name)
            assert part is not None
            while piece := part.read(_PIECE):
                yield piece

    def content(self, name: str) -> bytes:
        return b"".join(self.chunks(name))


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    part = tar.extractfile(name)
    return b"" if part is None else part.read()
