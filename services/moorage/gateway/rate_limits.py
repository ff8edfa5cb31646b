"""Limits of the HTTP interface: request rates by token, failed logins by address, and total connections and event streams."""

from __future__ import annotations

import os
from typing import NamedTuple

from moorage.collections import LruDict
from moorage.model.problems import Problem, Refused

#: The largest body; what the intent store keeps of it must fit into one message.
BODY_LIMIT = 1 << 20


class Limits(NamedTuple):
    """Limits from the environment; 0 means no limit."""

    rate: float = 1000.0  # requests a second and token; the administrator's own token is not limited
    failures: float = 10.0  # wrong tokens a second and address
    connections: int = 8192
    streams: int = 4096

    @classmethod
    def from_env(cls) -> Limits:
        found = {}
        for name, default in cls._field_defaults.items():
            text = os.environ.get(f"MOORAGE_HTTP_{name.upper()}", "")
            try:
                found[name] = type(default)(text or default)
            except ValueError:
                raise SystemExit(f"MOORAGE_HTTP_{name.upper()} must be a number, not {text!r}") from None
        return cls(**found)


class RateLimiter:
    """A token bucket per key, refilled at `rate` a second up to the tokens of two seconds."""

    def __init__(self, rate: float, keep: int = 10_000) -> None:
        self.rate = rate
        self.burst = max(2 * rate, 1.0)
        self._levels = LruDict[str, tuple[float, float]](keep)  # a key unused for longest has a full bucket anyway

    def take(self, key: str, now: float) -> float:
        """Takes one token. Returns 0, or the seconds to wait if there is none."""
        if not self.rate:
            return 0.0
        level, at = self._levels.get(key, (self.burst, now))
        level = min(self.burst, level + (now - at) * self.rate)
        wait = 0.0 if level >= 1 else (1 - level) / self.rate
        self._levels[key] = (level if wait else level - 1, now)
        return wait


class TooManyRequests(Refused):
    def __init__(self, detail: str, wait: float) -> None:
        super().__init__(Problem(title="Too many requests", status=429, code="TooManyRequests", detail=detail))
        self.wait = wait
