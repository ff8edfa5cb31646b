"""Measures how soon after its window begins a guest is let in, where the broker is killed just before."""

from __future__ import annotations

from moorage_testkit.machine_windows import KILLED, windows_with_the_broker_killed

from .harness import Figure, percentiles

WINDOWS, APART = 20, 6.0


async def machine_windows() -> list[Figure]:
    """The first one is so far away that slots are not committed as soon as guests come."""
    found = await windows_with_the_broker_killed(WINDOWS, first=45, apart=APART)
    late = [(window.opened - window.begin) * 1e3 for window in found]
    p50, p99 = percentiles(late)
    ahead = [window.begin - window.committed for window in found]
    figure = Figure(
        name=f"{WINDOWS} windows, the broker killed {KILLED:g} s before each: from its begin until the gate is off",
        n=len(late),
        p50=p50,
        p99=p99,
        floor_parts={"earliest": min(late), "latest": max(late), "committed s ahead, latest": min(ahead)},
        goal="0 ... +1,000 ms, all of them",
        ok=0 <= min(late) and max(late) <= 1_000,
    )
    return [figure]
