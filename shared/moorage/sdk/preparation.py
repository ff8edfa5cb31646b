"""Answers the newest asks again after the fleet changed, while nothing is asked: what a controller caches by the shapes of pods is then
current when the next ask comes, which most often is about pods like these."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import structlog

from moorage.collections import LruDict
from moorage.model.candidates import Ask

log = structlog.get_logger("sdk")

#: Asks that are kept, and the seconds after which nothing is prepared for one any more.
KEPT, RECENT = 4, 60.0
#: Seconds after a change and without an ask before something is prepared: whoever made the change, or asks next, comes first.
QUIET = 0.002
#: So many asks within so many seconds are many groups that are decided together: others come before anything prepared is of use.
MANY, TOGETHER = 8, 0.1
#: The part of this process's time that it may take.
SHARE = 0.1


class Preparation:
    """Calls `answer` with the asks that came last, one at a time and the newest first. `changed` tells that their answers may be
    others now."""

    def __init__(self, answer: Callable[[Ask], object]) -> None:
        self._answer = answer
        self._asks = LruDict[tuple[str, ...], tuple[float, Ask]](KEPT)  # by the shapes of their pods
        self._asked_at = 0.0
        self._newest = deque[float](maxlen=MANY)  # when the newest asks came
        self._has_changed = False
        self._due: list[Ask] = []  # the next one last
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, ask: Ask) -> None:
        self._asked_at = asyncio.get_running_loop().time()
        self._newest.append(self._asked_at)
        if not (ask.explain or ask.held or ask.own):  # these are about one group
            self._asks[_shapes(ask)] = self._asked_at, ask

    def changed(self) -> None:
        self._has_changed = True
        if self._timer is None and self._asks:
            self._wait(QUIET)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._prepare)

    def _prepare(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if now - self._asked_at < QUIET:
            self._wait(QUIET)
            return
        if len(self._newest) == MANY and (left := self._newest[0] + TOGETHER - now) > 0:
            self._wait(max(left, QUIET))
            return
        if self._has_changed:
            self._has_changed = False
            self._due = [ask for at, ask in self._asks.values() if now - at < RECENT]
        if not self._due:
            return
        ask = self._due.pop()
        began = time.thread_time()
        try:
            self._answer(ask)
        except Exception:  # whoever asks is told
            log.exception("a controller failed", group=ask.group)
            self._asks.pop(_shapes(ask), None)  # it would fail after each change
        self._wait(QUIET + (time.thread_time() - began) / SHARE)


def _shapes(ask: Ask) -> tuple[str, ...]:
    return tuple(shape.key for app in ask.apps for shape in app.shapes)
