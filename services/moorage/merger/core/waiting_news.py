"""Tells whether the reasons for which a group waits are worth publishing again."""

from __future__ import annotations

import re

from moorage.model.attempts import Attempt

from .wait_queue import Waiter

#: Seconds for which a published try stands although numbers in its messages are others by now: they may change all the time.
NUMBERS_STAND = 60.0
_NUMBER = re.compile(r"\d+")


def is_news(waiter: Waiter, attempt: Attempt, now: float) -> bool:
    """Returns whether a try differs visibly from the one that was published last."""
    told = waiter.told
    if told is None or _summary(told) != _summary(attempt):
        return True
    return now - waiter.told_at >= NUMBERS_STAND and _messages(told) != _messages(attempt)


def _summary(attempt: Attempt) -> tuple[str, list[tuple[str, ...]]]:
    """Returns the visible part of an attempt, without numbers in its messages."""
    seen = [
        (r.code, r.app, r.consumer, r.need, str(r.clusters), r.needed, r.free, r.by, _NUMBER.sub("0", r.message))
        for r in attempt.reasons
    ]
    return attempt.phase, sorted(seen)


def _messages(attempt: Attempt) -> list[str]:
    return sorted(reason.message for reason in attempt.reasons)
