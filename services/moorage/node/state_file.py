"""Keeps a file that survives a crash whole: readers see the old content or the new one, never a part."""

from __future__ import annotations

import os
import time
from pathlib import Path

from moorage.bus.failpoints import reached

#: A larger file is not one of ours.
MAX_SIZE = 64 << 20


class StateFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """Returns the content; None if there is no file. A file that is too large is no state: its content is cut."""
        try:
            with self.path.open("rb") as file:
                return file.read(min(os.fstat(file.fileno()).st_size, MAX_SIZE))
        except FileNotFoundError:
            return None

    def write(self, content: bytes, *, sync: bool = True) -> None:
        """Replaces the content. When this returns it is on disk, unless `sync` is False: then a loss of power may undo it."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                reached("node.state.written")
                if sync:
                    os.fsync(fd)
            fresh.replace(self.path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
        reached("node.state.renamed")
        if not sync:
            return
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def set_aside(self, why: str) -> str:
        """Renames the file, so that it can be looked at, and returns one sentence about it."""
        aside = self.path.with_name(f"{self.path.name}.{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.bad")
        self.path.replace(aside)
        return f"{self.path.name} was set aside as {aside.name}: {why}"
