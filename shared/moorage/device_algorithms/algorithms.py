"""Names the algorithms: those that come with Moorage, and those of installed packages.

A package brings one with an entry point of the group `moorage.device_algorithms` that loads a `DeviceAlgorithm`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from .columns import DeviceColumns, DeviceRequest, Floats, Options
from .mix import RequestMix

ENTRY_POINTS = "moorage.device_algorithms"
DEFAULT = "default"

#: Returns a score for each option. The highest wins, the first of equal ones.
Scorer = Callable[[Options, DeviceRequest], Floats]


class DeviceAlgorithm(NamedTuple):
    """`prepare` is called again whenever the mix has been learned again; its scorer sees how the columns change meanwhile."""

    name: str
    prepare: Callable[[DeviceColumns, RequestMix], Scorer]
    takes_first: bool = False  # of several devices the first ones, not those that are close together


class UnknownAlgorithm(LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f"no algorithm is called {name!r}; there are {', '.join(algorithm_names())}")


def algorithm_names() -> list[str]:
    """Returns the names of all algorithms, the default first."""
    return sorted({*_built_in(), *_installed()}, key=lambda name: (name != DEFAULT, name))


@cache
def find_algorithm(name: str = DEFAULT) -> DeviceAlgorithm:
    """Returns the algorithm of this name. Raises `UnknownAlgorithm`, or what a package raises that cannot be loaded."""
    found = _built_in().get(name)
    if found is not None:
        return found
    entry = _installed().get(name)
    if entry is None:
        raise UnknownAlgorithm(name)
    loaded = entry.load()
    if not isinstance(loaded, DeviceAlgorithm):
        raise TypeError(f"{entry.value}, the algorithm {name!r} of an installed package, is no DeviceAlgorithm")
    return loaded._replace(name=name)


@cache
def _built_in() -> dict[str, DeviceAlgorithm]:
    from . import fragmentation, plain

    return {
        found.name: found
        for found in (
            DeviceAlgorithm("first-fit", plain.first_fit, takes_first=True),
            DeviceAlgorithm("best-fit", plain.best_fit),
            DeviceAlgorithm("most-allocated", plain.most_allocated),
            DeviceAlgorithm("spread", plain.spread),
            DeviceAlgorithm("aligned", plain.aligned),
            DeviceAlgorithm("fgd", fragmentation.fgd),
            DeviceAlgorithm(DEFAULT, fragmentation.learned),
        )
    }


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
