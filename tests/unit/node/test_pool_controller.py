"""Pools grow at once under load, shrink slowly, and do not swing under a constant load."""

from __future__ import annotations

from moorage.node.core.pool_controller import PoolController, PoolLoad
from moorage.qos.cpusets import parse_cpuset
from moorage.qos.node_policy import ControlledPool, ControllerSpec, Pool
from moorage_testkit.nodes import machine

SPEC = ControllerSpec(pools={"online": ControlledPool(usage=0.6, wait=0.05, donors=("offline",))})


class World:
    """Two pools, and an online load of so many CPUs; containers wait where it has less than it `needs`."""

    def __init__(self, threads: int = 2) -> None:
        self.machine = machine(2, 20, threads) if threads == 2 else machine(2, 40)
        self.pools = {
            "online": Pool("online", parse_cpuset("0-9,40-49"), 4, default=True),
            "offline": Pool("offline", parse_cpuset("10-39,50-79"), 8),
        }
        self.controller = PoolController(SPEC, self.machine.cpus)
        self.now = 0.0
        self.moves: list[float] = []

    def step(self, used: float, needs: float = 0, *, wait: bool = True, age: float = 0) -> int:
        self.now += 1
        size = self.size
        usage = min(1.0, used / size)
        waiting = 0.2 if size < needs else 0.0
        load = PoolLoad(usage, waiting if wait else None, self.now - age)
        changed = self.controller.decide(self.now, self.pools, {"online": load})
        for name, cpus in changed.items():
            self.pools[name] = self.pools[name]._replace(cpus=cpus)
        assert not self.pools["online"].cpus & self.pools["offline"].cpus
        assert (self.pools["online"].cpus | self.pools["offline"].cpus).bit_count() == 80
        whole = self.machine.cpus.whole_cores(self.pools["online"].cpus)
        assert whole == self.pools["online"].cpus
        if changed:
            self.moves.append(self.now)
        return self.size

    @property
    def size(self) -> int:
        return self.pools["online"].cpus.bit_count()

    def zones(self) -> list[int]:
        return [(cpus & self.pools["online"].cpus).bit_count() for cpus in self.machine.cpus.numas.values()]


def test_more_load_grows_a_pool_at_once_and_keeps_its_shares() -> None:
    world = World()
    assert world.step(used=18) == 30
    assert world.zones() == [16, 14]


def test_waiting_grows_a_pool_that_uses_little() -> None:
    world = World()
    assert world.step(used=4, needs=21) == 22


def test_donors_keep_their_minimum() -> None:
    world = World()
    for _ in range(10):
        world.step(used=79)
    assert world.size == 72


def test_a_constant_load_comes_to_rest() -> None:
    for needs in (0, 17, 25):
        for used in (6, 11.9, 14, 30):
            world = World()
            for _ in range(600):
                world.step(used=used, needs=needs)
            quiet = [moved for moved in world.moves if moved > 540]
            assert not quiet, (needs, used, world.moves[-5:])


def test_less_load_shrinks_a_core_after_half_a_minute() -> None:
    world = World()
    sizes = [world.step(used=4) for _ in range(65)]
    assert sizes[28] == 20
    assert sizes[32] == 18
    assert sizes[64] == 16


def test_without_signals_nothing_moves() -> None:
    world = World()
    assert world.step(used=19, age=5) == 20
    assert world.controller.decide(100.0, world.pools, {}) == {}
