"""Selectors, pages and subject patterns of the gateway, against plain definitions of each."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from moorage.gateway.core.selectors import parse, selects
from moorage.gateway.event_records import LoggedEvent, is_event_subject, matches
from moorage.gateway.event_stream import Listener
from moorage.gateway.responses import page_of
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


@pytest.mark.parametrize("query", [{"limit": "-1"}, {"limit": "x"}, {"limit": "٣"}, {"continue": "*"}])
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


class Pipe:
    """A connection whose reader never reads."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "nothing is written to what is closed"
        self.waiting.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.waiting))


def test_a_reader_that_is_too_slow_is_cut_off() -> None:
    pipe = Pipe()
    listener = Listener(pipe, lambda event: event.data, lambda: True)
    listener.go_live(0)
    for seq in range(1, 2000):
        listener.send(LoggedEvent(seq, "", "", b"x" * 10_000))
    assert listener.slow and listener.ended.is_set()
    assert pipe.get_write_buffer_size() < 5 << 20


def test_a_reader_hears_each_event_once_and_nothing_after_its_end() -> None:
    pipe = Pipe()
    good = True
    listener = Listener(pipe, lambda event: b"%d" % event.seq, lambda: good)
    for seq in (3, 4, 5):  # while it is told what came before
        listener.send(LoggedEvent(seq, "", "", b""))
    assert not pipe.waiting
    listener.go_live(4)
    listener.send(LoggedEvent(5, "", "", b""))
    listener.send(LoggedEvent(6, "", "", b""))
    assert pipe.waiting == [b"5", b"6"]
    good = False
    listener.send(LoggedEvent(7, "", "", b""))
    assert listener.ended.is_set() and pipe.waiting == [b"5", b"6"]
    other = Listener(pipe, lambda event: event.data, lambda: True)
    other.go_live(0)
    pipe.closed = True
    other.send(LoggedEvent(1, "", "", b""))
    assert other.ended.is_set()
