"""Windows of a real cluster begin in time, whatever becomes of the broker just before."""

from __future__ import annotations

from moorage.machine_groups.windows import AHEAD
from moorage_testkit.machine_windows import windows_with_the_broker_killed


async def test_guests_are_let_in_when_their_windows_begin_although_the_broker_was_killed() -> None:
    """The slots are committed before, so that the cluster needs nothing of the mesh then."""
    found = await windows_with_the_broker_killed(2, first=30, apart=8)
    for window in found:
        assert window.begin - AHEAD <= window.committed < window.begin
        assert window.begin <= window.opened, "never before"
        assert window.opened < window.begin + 15, "a busy machine may be late; the benchmark has the goal"
