"""Child processes of the supervisor: forked with modules already imported, or executed. They never outlive the supervisor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..process_title import set_title

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

#: Signals that the supervisor receives with `wait_signal`; children get the default handling back.
TAKEN = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}

#: Restart back-off in seconds: doubled for each exit within QUIET seconds of the start, reset after a longer run.
FIRST_DELAY, LAST_DELAY, QUIET = 0.2, 15.0, 30.0

_MAX_LOG_BYTES = 16 << 20
#: Seconds between two looks for a signal where the system cannot wait for one with a time limit.
_SIGNAL_POLL = 0.05


def block_signals() -> None:
    """Keeps the supervisor's signals for `wait_signal`."""
    signal.signal(signal.SIGCHLD, lambda *_: None)  # macOS drops a blocked SIGCHLD that has no handler
    signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)


def wait_signal(seconds: float) -> int | None:
    """Returns the next of the supervisor's signals, or None when the time is up."""
    if hasattr(signal, "sigtimedwait"):
        info = signal.sigtimedwait(TAKEN, max(0.0, seconds))
        return None if info is None else info.si_signo
    end = time.monotonic() + seconds
    while not (pending := signal.sigpending() & TAKEN):
        if (left := end - time.monotonic()) <= 0:
            return None
        time.sleep(min(left, _SIGNAL_POLL))
    return signal.sigwait(pending)


def fork(name: str, body: Callable[[], int | None], log: Path | None) -> int:
    """Runs `body` in a child that dies with this process. Without a log, the child shares this process's output."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _set_up_child(name, parent, log)
        code = body() or 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
        if isinstance(ending.code, str):
            sys.stderr.write(f"{ending.code}\n")
    except BaseException:  # noqa: BLE001 - the child must end here, whatever was raised
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # must not run the supervisor's own clean-up


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent dies; survives exec. Only Linux can."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _set_up_child(name: str, parent: int, log: Path | None) -> None:
    die_with_parent()
    if os.getppid() != parent:  # the parent died before the line above
        os._exit(1)
    os.setpgid(0, 0)  # Ctrl-C in the terminal reaches only the supervisor, which stops its children in order
    set_title(name)
    for number in TAKEN:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if log is not None:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)


def limit_log(log: Path) -> None:
    """Moves the contents of a log that is too large to another file; the process goes on writing at the new end."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def execute(argv: list[str], more: Mapping[str, str]) -> Callable[[], int]:
    """Returns a body for `fork` that executes another program. `more` are defaults for environment variables."""

    def body() -> int:
        os.execve(argv[0], argv, {**more, **os.environ})

    return body


@dataclass
class SupervisedProcess:
    """A process that the supervisor keeps running."""

    kind: str
    number: int
    body: Callable[[], int | None]
    log: Path
    wave: int = 1  # lower waves are stopped first
    metrics: str = ""  # URL of its health and metrics
    pid: int = 0
    started: float = 0.0
    deaths: int = 0
    quick_deaths: int = 0  # consecutive exits soon after a start
    last_exit: str = ""
    due: float = 0.0  # time of the next start
    ended: float = field(default=0.0)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}" if self.number else self.kind

    def start(self) -> None:
        self.pid = fork(self.name, self.body, self.log)
        self.started = time.monotonic()

    def died(self, status: int, longest_delay: float = LAST_DELAY) -> None:
        """Notes an exit, and when the process is due to be started again."""
        now = time.monotonic()
        self.quick_deaths = self.quick_deaths + 1 if now - self.started < QUIET else 1
        self.deaths += 1
        self.last_exit = exit_text(status)
        self.pid = 0
        self.ended = time.time()
        self.due = now + min(longest_delay, FIRST_DELAY * 2 ** min(self.quick_deaths - 1, 16))

    def tail(self, lines: int = 12) -> str:
        """Returns the end of the log, which has the reason if the process does not start."""
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
