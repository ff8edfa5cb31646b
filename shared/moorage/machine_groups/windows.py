"""Windows: slots that only guests that name the window get between two times. All times are seconds since the epoch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from moorage.model.machines import Window

_RUNTIME = re.compile(r"(?=.)(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?", re.ASCII)
#: Grants for a window are made this many seconds ahead, so that their slots are empty when it begins.
AHEAD = 30.0
#: A guest ends this many seconds before the end of its window, besides its grace period.
MARGIN = 5.0


class WindowFields(Protocol):
    """A reader of fields that records violations."""

    def error(self, path: str, code: str, message: str) -> None: ...
    def value(self, parent: Mapping[str, Any], key: str, kind: type, path: str, *, required: bool = False) -> Any: ...
    def entries(self, parent: Mapping[str, Any], key: str, path: str) -> list[tuple[str, Mapping[str, Any]]]: ...
    def known(self, given: Mapping[str, Any], fields: Sequence[str], path: str) -> None: ...
    def strings(self, parent: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]: ...
    def number(
        self, parent: Mapping[str, Any], key: str, path: str, least: int, *, required: bool = False
    ) -> int | None: ...


def parse_time(text: str) -> float:
    """Parses RFC 3339. Raises ValueError."""
    found = datetime.fromisoformat(text.replace("z", "Z"))
    if found.tzinfo is None or "T" not in text.upper():
        raise ValueError(f"{text!r} is no time with date and zone like 2026-01-31T09:00:00Z")
    return found.timestamp()


def parse_runtime(text: str) -> int | None:
    """Returns the seconds of a duration as 2h, 90m or 1h30m; None if it is none."""
    found = _RUNTIME.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds or None


def read_windows(fields: WindowFields, entry: Mapping[str, Any], path: str) -> list[Window]:
    if not entry.get("windows"):
        return []
    windows: list[Window] = []
    for at, raw in fields.entries(entry, "windows", path):
        fields.known(raw, ("name", "slots", "from", "until", "projects"), at)
        name = fields.value(raw, "name", str, at, required=True) or ""
        if name in {w.name for w in windows}:
            fields.error(f"{at}.name", "Duplicate", f"there is a second window {name!r}")
        slots = fields.number(raw, "slots", at, 1, required=True)
        times: list[float] = []
        for key in ("from", "until"):
            text = fields.value(raw, key, str, at, required=True)
            if text is None:
                continue
            try:
                times.append(parse_time(text))
            except ValueError:
                fields.error(f"{at}.{key}", "BadValue", f"{text!r} is not a time like 2026-01-31T09:00:00Z")
        if len(times) == 2 and times[0] >= times[1]:
            fields.error(f"{at}.until", "Contradiction", "is not after from")
        if len(times) == 2 and times[0] < times[1] and slots and name:
            projects = fields.strings(raw, "projects", at)
            windows.append(Window(name=name, slots=slots, from_=raw["from"], until=raw["until"], projects=projects))
    return windows


def window_violations(
    fields: WindowFields, windows: Sequence[Window], available: int | None, offline: int, path: str
) -> None:
    """Records where windows together promise more than there is. Slots that a cluster grants alone are not promised."""
    if available is None:
        return
    promised = available - offline
    for span in (spans := [Span.of(w) for w in windows]):
        taken = sum(other.slots for other in spans if other.begin <= span.begin < other.end)
        if taken > promised:
            text = f"at {span.window.from_} windows have {taken} slots together; {promised} can be promised"
            fields.error(path, "Overbooked", text)
            return


class Span(NamedTuple):
    window: Window
    begin: float
    end: float
    slots: int

    @classmethod
    def of(cls, window: Window) -> Span:
        return cls(window, parse_time(window.from_), parse_time(window.until), window.slots)


class Holder(NamedTuple):
    """A guest that has a slot. `end` is when it is over at the latest; None: nobody knows."""

    window: str = ""
    end: float | None = None


def next_time(spans: Iterable[Span], now: float) -> float | None:
    """Returns when windows change next what may be granted."""
    times = [time for span in spans for time in (span.begin - AHEAD, span.begin, span.end) if time > now]
    return min(times, default=None)


def end_of(now: float, seconds: int, grace: int) -> float | None:
    """Returns when a guest that starts now is over at the latest."""
    return now + seconds + grace + MARGIN if seconds else None


def may_enter(total: int, spans: Sequence[Span], holders: Sequence[Holder], guest: Holder, now: float) -> bool:
    """Returns whether a guest may have one of `total` slots beside those who hold some and what windows keep free. One that names a window
    is let in from AHEAD before it begins."""
    if guest.window:
        span = next((s for s in spans if s.window.name == guest.window), None)
        if span is None or not span.begin - AHEAD <= now < span.end:
            return False
        if sum(h.window == guest.window for h in holders) >= span.slots:
            return False
        return len(holders) < total
    future = [s for s in spans if s.end > now]
    if len(holders) >= total:
        return False
    if not future:
        return True
    for time in [now, *(s.begin for s in future if s.begin > now)]:
        if guest.end is not None and time >= guest.end:
            continue
        kept = sum(s.slots for s in future if s.begin <= time < s.end)
        others = sum((h.end is None or h.end > time) and not _is_inside(h, future, time) for h in holders)
        if others + 1 + kept > total:
            return False
    return True


def _is_inside(holder: Holder, spans: Sequence[Span], time: float) -> bool:
    """Returns whether a holder is covered by the slots of its window."""
    return any(s.window.name == holder.window and s.begin <= time < s.end for s in spans) if holder.window else False


def deadline_seconds(until: float, now: float, grace: int, seconds: int) -> int:
    """Returns the activeDeadlineSeconds of a guest that has to be over at `until`; 0 if that is too late."""
    left = int(until - now - grace - MARGIN)
    return max(0, min(left, seconds) if seconds else left)
