"""Processes as the supervisor has them: forked warm or executed, in sessions of their own, never outliving it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)

#: Signals the supervisor takes with sigtimedwait; children get them back as they were.
TAKEN = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}

#: Back-off of restarts: doubled for each death that came soon after the start, forgotten after a quiet while.
FIRST_DELAY, LAST_DELAY, QUIET = 0.2, 15.0, 30.0

_LOG_LIMIT = 16 << 20


def fork(name: str, body: Callable[[], int | None], log: Path | None) -> int:
    """Runs `body` in a child that dies with this process. Without a log it writes where this process writes."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _settle(name, parent, log)
        code = body() or 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
        if isinstance(ending.code, str):
            sys.stderr.write(f"{ending.code}\n")
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # nothing of the supervisor's own clean-up may run here


def with_parent() -> None:
    """In a child, before it becomes another program: it dies with this process."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _settle(name: str, parent: int, log: Path | None) -> None:
    with_parent()
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    os.setpgid(0, 0)  # a Ctrl-C in the terminal is for the supervisor, who stops all in order
    _libc.prctl(_PR_SET_NAME, f"moorage-{name}".encode()[:15], 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if log is not None:
        if log.exists() and log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)


def execute(argv: list[str], more: Mapping[str, str]) -> Callable[[], int]:
    """A body that becomes another program; the parent's death still ends it (the setting survives exec). `more`: its
    environment, where that does not say otherwise."""

    def body() -> int:
        os.execve(argv[0], argv, {**more, **os.environ})

    return body


@dataclass
class SupervisedProcess:
    """One process that is to run all the time."""

    kind: str
    number: int
    body: Callable[[], int | None]
    log: Path
    wave: int = 1  # stopped in this order
    metrics: str = ""  # where it shows how it does
    pid: int = 0
    started: float = 0.0
    deaths: int = 0  # all of them
    soon: int = 0  # those in a row that came before a quiet while
    last_exit: str = ""
    due: float = 0.0  # when to start again
    ended: float = field(default=0.0)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}" if self.number else self.kind

    def start(self) -> None:
        self.pid = fork(self.name, self.body, self.log)
        self.started = time.monotonic()

    def died(self, status: int) -> None:
        now = time.monotonic()
        self.soon = self.soon + 1 if now - self.started < QUIET else 1
        self.deaths += 1
        self.last_exit = exit_text(status)
        self.pid = 0
        self.ended = time.time()
        self.due = now + min(LAST_DELAY, FIRST_DELAY * 2 ** min(self.soon - 1, 16))

    def tail(self, lines: int = 12) -> str:
        """The end of the log: the reason, where it does not start."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def exit_text(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
