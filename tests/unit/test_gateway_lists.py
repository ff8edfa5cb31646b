"""Selectors, pages and subject patterns of the gateway, against plain definitions of each."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.answers import page_of
from moorage.gateway.selectors import parse, selects
from moorage.gateway.stream import Listener, is_event_subject, matches
from moorage.model.problems import Refused

LABELS = {"app": "web", "tier": "", "feature.node.kubernetes.io/x": "true", "n": "3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("app=web", True),
        ("app == web , n=3", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("app", True),
        ("!app", False),
        ("! missing", True),
        ("app in (web, db)", True),
        ("app notin (web)", False),
        ("missing notin (a)", True),
        ("tier=", True),
        ("feature.node.kubernetes.io/x=true,!y", True),
        ("app in (db),n", False),
    ],
)
def test_selectors(text: str, expected: bool) -> None:
    assert selects(parse(text), LABELS) is expected


@pytest.mark.parametrize("text", ["a=b,", ",", "a=b c", "=b", "a in", "a in b", "a in (b", "!", "a!b", "-a", "a=b=c"])
def test_what_is_no_selector_says_where(text: str) -> None:
    with pytest.raises(ValueError, match="selector"):
        parse(text)


def request(**query: str) -> web.Request:
    return cast("web.Request", SimpleNamespace(query=query))


@given(st.sets(st.text(min_size=1, max_size=6)), st.integers(1, 5))
def test_pages_together_are_the_list(keys: set[str], limit: int) -> None:
    wanted, found, token = sorted(keys), list[str](), ""
    while True:
        page, token = page_of(request(limit=str(limit), **({"continue": token} if token else {})), wanted)
        assert len(page) <= limit
        found += page
        if not token:
            break
    assert found == wanted


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "-1"}, {"limit": "x"}, {"limit": "٣"}, {"continue": "*"}])
def test_bad_parameters_are_refused_by_name(query: dict[str, str]) -> None:
    with pytest.raises(Refused) as refused:
        page_of(request(**query), ["a"])
    assert refused.value.problem.errors[0].path == f"?{next(iter(query))}"


_part = st.sampled_from(["a", "b", "c"])


@given(st.lists(_part | st.just("*"), min_size=1, max_size=4), st.booleans(), st.lists(_part, min_size=1, max_size=5))
def test_patterns_match_as_nats_has_it(parts: list[str], rest: bool, subject: list[str]) -> None:
    pattern = (*parts, ">") if rest else tuple(parts)
    form = r"\.".join(r"[^.]+" if p == "*" else p for p in parts) + (r"\..+" if rest else "")
    assert matches(pattern, ".".join(subject)) is (re.fullmatch(form, ".".join(subject)) is not None)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("moorage.events.>", True),
        ("moorage.events.fleet.*.lab.edge-1", True),
        ("moorage.events", False),
        ("moorage.>", False),
        ("moorage.events.>.x", False),
        ("moorage.events..x", False),
        ("moorage.events.a*", False),
        ("moorage.events.a b", False),
        ("moorage.intents.apply", False),
    ],
)
def test_only_events_may_be_listened_to(text: str, good: bool) -> None:
    assert is_event_subject(text) is good


def test_a_reader_that_is_too_slow_is_cut_off_and_told() -> None:
    listener: Any = Listener("moorage.events.>")
    for number in range(5000):
        listener.put(str(number).encode())
    assert listener.lost and listener.queue.qsize() <= 2048
    *_, last = [listener.queue.get_nowait() for _ in range(listener.queue.qsize())]
    assert last is None
