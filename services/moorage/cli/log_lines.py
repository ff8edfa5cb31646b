"""Reads the log files of a local mesh: JSON of the workers, and the text of NATS, Valkey and the supervisor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

#: Fields that stand at the beginning of a line, or say what everybody knows.
_SHOWN = ("timestamp", "level", "event", "worker", "logger", "exception")
#: `[12] 2026/11/19 10:36:58.123456 [INF] Server is ready` of NATS.
_NATS = re.compile(r"\[\d+\] (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+) \[(\w+)\] (.*)")
_NATS_LEVELS = {"INF": "info", "WRN": "warning", "ERR": "error", "FTL": "error", "DBG": "debug", "TRC": "debug"}
#: `12:M 19 Nov 2026 10:36:58.123 * Ready to accept connections` of Valkey.
_VALKEY = re.compile(r"\d+:\w (\d+ \w{3} \d{4} \d\d:\d\d:\d\d\.\d+) ([*#.-]) (.*)")
_VALKEY_LEVELS = {"*": "info", "#": "warning", "-": "info", ".": "debug"}


@dataclass
class LogLine:
    """One line of a log, with the lines that belong to it, such as a traceback."""

    time: float  # seconds since 1970
    worker: str
    level: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)  # of a worker's line

    def as_dict(self) -> dict[str, Any]:
        head = {"timestamp": datetime.fromtimestamp(self.time).astimezone().isoformat(), "worker": self.worker}
        return self.data | {"worker": self.worker} if self.data else {**head, "level": self.level, "event": self.text}


def parse(lines: Iterable[str], worker: str, otherwise: float) -> Iterator[LogLine]:
    """Yields the lines of one file. A line without a time belongs to the one before; the first has the time `otherwise`."""
    current: LogLine | None = None
    for line in lines:
        found = _parse_line(line, worker)
        if found is None and current is not None and not current.data:
            current.text += f"\n{line}"
            continue
        if current is not None:
            yield current
        current = found or LogLine(current.time if current is not None else otherwise, worker, "", line)
    if current is not None:
        yield current


def _parse_line(line: str, worker: str) -> LogLine | None:
    if line.startswith("{"):
        return _parse_json(line, worker)
    if match := _NATS.fullmatch(line):
        time = datetime.strptime(match[1], "%Y/%m/%d %H:%M:%S.%f").timestamp()
        return LogLine(time, worker, _NATS_LEVELS.get(match[2], "info"), match[3])
    if match := _VALKEY.fullmatch(line):
        time = datetime.strptime(match[1], "%d %b %Y %H:%M:%S.%f").timestamp()
        return LogLine(time, worker, _VALKEY_LEVELS[match[2]], match[3])
    return None


def _parse_json(line: str, worker: str) -> LogLine | None:
    try:
        data = json.loads(line)
        time = datetime.fromisoformat(data["timestamp"]).timestamp()
    except (ValueError, KeyError, TypeError):
        return None
    fields = [f"{name}={_value(value)}" for name, value in data.items() if name not in _SHOWN]
    text = " ".join([str(data.get("event", "")), *fields])
    if exception := data.get("exception"):
        text += f"\n{exception}"
    return LogLine(time, worker, str(data.get("level", "")), text, data)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return json.dumps(text, ensure_ascii=False) if isinstance(value, str) and (not text or " " in text) else text


@dataclass
class LogFile:
    """A log file that is read from where the last reading ended, also when it was replaced by a new one."""

    path: Path
    inode: int = 0
    offset: int = 0
    rest: bytes = b""  # of a line that is not written completely

    def read_new(self) -> list[LogLine]:
        try:
            with self.path.open("rb") as file:
                stat = self.path.stat()
                if stat.st_ino != self.inode or stat.st_size < self.offset:
                    self.inode, self.offset, self.rest = stat.st_ino, 0, b""
                file.seek(self.offset)
                read = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(read)
        complete, newline, self.rest = (self.rest + read).rpartition(b"\n")
        lines = complete.decode(errors="replace").split("\n") if newline else []
        return list(parse(lines, self.path.stem, stat.st_mtime))
