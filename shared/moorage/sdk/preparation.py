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
MANY, TOGETHER = 8, 0.2
#: The part of this process's time that it may take.
SHARE = 0.1


class Preparation:
    """Calls `answer` with the asks that came last. `changed` tells that their answers may be others now."""

    def __init__(self, answer: Callable[[Ask], object]) -> None:
        self._answer = answer
        self._asks = LruDict[tuple[str, ...], tuple[float, Ask]](KEPT)  # by the shapes of their pods
        self._asked_at = 0.0
        self._newest = deque[float](maxlen=MANY)  # when the newest asks came
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, ask: Ask) -> None:
        self._asked_at = asyncio.get_running_loop().time()
        self._newest.append(self._asked_at)
        if not (ask.explain or ask.held or ask.own):  # these are about one group
            self._asks[tuple(shape.key for app in ask.apps for shape in app.shapes)] = self._asked_at, ask

    def changed(self) -> None:
        if self._timer is None and self._asks:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(loop.time() + QUIET, self._not_before), self._prepare)

    def _prepare(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if now - self._asked_at < QUIET:
            self._wait()
            return
        if len(self._newest) == MANY and now - self._newest[0] < TOGETHER:
            self._not_before = self._newest[0] + TOGETHER
            self._wait()
            return
        began = time.thread_time()
        for at, ask in list(self._asks.values()):
            if now - at < RECENT:
                try:
                    self._answer(ask)
                except Exception:  # the ask itself tells its asker
                    log.exception("a controller failed", group=ask.group)
        self._not_before = now + (time.thread_time() - began) / SHARE
