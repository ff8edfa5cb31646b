"""Rates hold over every stretch of time, and one caller's never touches another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.rate_limits import Limits, RateLimiter

pauses = st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=200)


@given(st.floats(0.5, 50), pauses)
def test_no_stretch_of_time_has_more_than_its_share(rate: float, waits: list[float]) -> None:
    rates, now = RateLimiter(rate), 0.0
    passed: list[float] = []
    for wait in waits:
        now += wait
        if not rates.take("one", now):
            passed.append(now)
    for first, start in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= rates.burst + (passed[last] - start) * rate + 1e-6


@given(st.floats(0.5, 50), pauses)
def test_who_waits_as_long_as_told_may_go_on(rate: float, waits: list[float]) -> None:
    rates, now = RateLimiter(rate), 0.0
    for wait in waits:
        now += wait / 10
        if told := rates.take("one", now):
            now += told + 1e-9
            assert not rates.take("one", now)


def test_others_are_not_touched_and_the_longest_away_are_forgotten() -> None:
    rates = RateLimiter(1, keep=2)
    assert [bool(rates.take("hasty", 0)) for _ in range(4)] == [False, False, True, True]
    assert not rates.take("calm", 0)
    assert not rates.take("third", 0) and not rates.take("hasty", 0), "forgotten is as good as new"
    assert not any(RateLimiter(0).take("anyone", 0) for _ in range(1000)), "0 is no limit"


def test_the_environment_says_fractions_and_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORAGE_HTTP_FAILURES", "0.5")
    monkeypatch.setenv("MOORAGE_HTTP_STREAMS", "7")
    assert Limits.from_env()[1:4:2] == (0.5, 7)
    monkeypatch.setenv("MOORAGE_HTTP_RATE", "fast")
    with pytest.raises(SystemExit, match="MOORAGE_HTTP_RATE must be a number, not 'fast'"):
        Limits.from_env()
