"""`moorage logs`: shows the logs of a mesh on this machine, of all workers in the order of time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

from cyclopts import Parameter

from ..durations import seconds
from ..exit_codes import DONE, MISSING, Failure
from ..log_lines import LogFile, LogLine
from ..output import StateDir
from ..state_dir import StateDirectory, state_dir
from ..terminal import out, paint

_POLL_SECONDS = 0.2
_TAIL = 100

Format = Annotated[
    Literal["table", "json"], Parameter(name=["--output", "-o"], help="Output format; json prints an object per line.")
]


def logs(
    worker: str = "",
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    since: str = "",
    tail: int | None = None,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Show the logs of the workers of the mesh on this machine.

    MOORAGE_LOG=debug|info|warning|error sets what `moorage up` and `moorage run` log. In containers, use their engine's logs.

    Parameters
    ----------
    worker
        A worker such as merger or merger-1, or nats, redis, agents or up (default: all of them).
    follow
        Print new lines until Ctrl-C.
    since
        Only lines that are not older than this, for example 90s, 10m or 2h.
    tail
        Number of the last lines to show (default: 100; all of them with --since).
    """
    directory = StateDirectory(state_dir(state))
    oldest = time.time() - seconds(since) if since else 0.0
    files: dict[str, LogFile] = {}
    lines = _read(directory, worker, files)
    if not files:
        _fail(directory, worker)
    lines = [line for line in lines if line.time >= oldest]
    count = tail if tail is not None else len(lines) if since else _TAIL
    _print(lines[max(0, len(lines) - max(0, count)) :], output)
    while follow:
        time.sleep(_POLL_SECONDS)
        _print(_read(directory, worker, files), output)
    return DONE


def _read(directory: StateDirectory, worker: str, files: dict[str, LogFile]) -> list[LogLine]:
    """Reads new lines of the worker's files, also of those that are new."""
    for path in directory.logs.glob("*.log"):
        if path.name not in files and (not worker or path.stem == worker or path.stem.startswith(f"{worker}-")):
            files[path.name] = LogFile(path)
    return sorted((line for file in files.values() for line in file.read_new()), key=lambda line: line.time)


def _fail(directory: StateDirectory, worker: str) -> None:
    known = sorted(path.stem for path in directory.logs.glob("*.log"))
    if known:
        raise Failure(f"there is no log of {worker!r} in {directory.logs}; there are {', '.join(known)}", MISSING)
    raise Failure(
        f"there are no logs in {directory.logs}; `moorage up` writes them there, and --state names another directory",
        MISSING,
    )


def _print(lines: Iterable[LogLine], output: str) -> None:
    for line in lines:
        if output == "json":
            out(json.dumps(line.as_dict(), ensure_ascii=False))
            continue
        clock = f"{datetime.fromtimestamp(line.time):%H:%M:%S.%f}"[:12]
        level = paint((line.level or "-").ljust(7))
        out(f"{clock}  {line.worker:<9}  {level}  {line.text}")
