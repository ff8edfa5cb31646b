"""Watches a directory and all below it for files that appear and vanish, by inotify."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_CREATE, _DELETE, _MOVED_FROM, _MOVED_TO, _CLOSE_WRITE = 0x100, 0x200, 0x40, 0x80, 0x8
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ISDIR, _ONLYDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000, 0x01000000
_MASK = _CREATE | _DELETE | _MOVED_FROM | _MOVED_TO | _CLOSE_WRITE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_EVENT = struct.Struct("iIII")


class DirectoryWatch:
    """Calls `changed` soon after something appeared or vanished below `root`, not with what: the caller lists the directory.
    Names that begin with a dot, and what is below them, are ignored. Needs a running event loop.

    With `shallow`, directories in it are not watched, and names with a dot count: a mounted ConfigMap changes by one."""

    def __init__(self, root: Path, changed: Callable[[], None], *, shallow: bool = False) -> None:
        self._root, self._changed, self._shallow = root, changed, shallow
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._directories: dict[int, Path] = {}
        self._add(root)
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _add(self, directory: Path) -> None:
        """Watches a directory and those in it. One that is gone already is skipped."""
        watch = self._libc.inotify_add_watch(self._fd, os.fsencode(directory), _MASK)
        if watch < 0:
            return
        self._directories[watch] = directory
        if self._shallow:
            return
        for inside in visible(directory):
            if inside.is_dir() and not inside.is_symlink():
                self._add(inside)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        offset, relevant = 0, False
        while offset + _EVENT.size <= len(data):
            watch, mask, _cookie, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            offset += _EVENT.size + length
            directory = self._directories.get(watch)
            if mask & _IGNORED:
                self._directories.pop(watch, None)
            hidden = name.startswith(b".") and not self._shallow
            if hidden or (directory is None and not mask & _OVERFLOW):
                continue
            relevant = True
            if mask & _OVERFLOW:
                self._add(self._root)  # what was lost is found again
            elif not self._shallow and mask & _ISDIR and mask & (_CREATE | _MOVED_TO) and directory is not None:
                self._add(directory / os.fsdecode(name))
        if relevant:
            self._changed()


def visible(directory: Path) -> Iterator[Path]:
    """Returns what is in a directory and does not begin with a dot; nothing for one that is gone."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return
    yield from (directory / name for name in sorted(names) if not name.startswith("."))


def sockets_below(root: Path) -> dict[Path, tuple[int, int]]:
    """Returns the sockets below a directory with what identifies each file: its inode and the time of its creation."""
    found: dict[Path, tuple[int, int]] = {}
    for path in visible(root):
        try:
            if path.is_dir() and not path.is_symlink():
                found |= sockets_below(path)
            elif path.is_socket():
                state = path.stat()
                found[path] = (state.st_ino, state.st_ctime_ns)
        except OSError:
            continue
    return found
