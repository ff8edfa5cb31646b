"""A request to an operation, and its answer."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from .records import Change
from .state import State

Made = TypeVar("Made")


def finished(steps: Generator[None, None, Made]) -> Made:
    """Makes all steps at once, and returns what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Made = end.value
            return made


@dataclass(slots=True)
class Call:
    state: State
    version: int  # the microversion's second number
    path: Mapping[str, str] = field(default_factory=dict)
    query: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    now: float = 0
    prefix: str = ""  # of links and locations
    limit: int = 100_000  # candidates of one answer, if the query asks for no fewer
    start: float = 0.0  # the tree with which candidates begin, from 0 to 1

    def parameter(self, name: str) -> str | None:
        """Returns the last value of a query parameter."""
        found = self.parameters(name)
        return found[-1] if found else None

    def first(self, name: str) -> str | None:
        """Returns the first value of a query parameter."""
        found = self.parameters(name)
        return found[0] if found else None

    def parameters(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]


class LongBody(NamedTuple):
    """The JSON of a long answer in pieces, so that no step handles all of it."""

    pieces: list[bytes]


class Search(NamedTuple):
    """The course of a search for candidates. `bounded`: it ended before everything was tried."""

    found: int
    steps: int
    bounded: bool


@dataclass(slots=True)
class Answer:
    """`body` is a value, or JSON that is made already. `modified` is the time of the newest thing shown; operations that tell none since 1.15 leave it None."""

    status: int = 200
    body: Any = None
    modified: float | None = None
    location: str = ""
    change: Change | None = None
    search: Search | None = None
