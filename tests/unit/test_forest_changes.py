"""Changes of single parts leave the columns as if all trees had been written anew."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, strategies

from moorage.parts import SHARES, Forest, Inventory, Part

CLASSES = ["VCPU", "VGPU", "FPGA"]


def random_part(rng: Random, name: str, parent: str | None) -> Part:
    inventories = {c: Inventory(rng.randint(1, 9)) for c in CLASSES if rng.random() < 0.4}
    traits = frozenset(t for t in ("T0", "T1", SHARES) if rng.random() < 0.2)
    return Part(
        name, parent, traits, frozenset(rng.sample("gh", rng.randint(0, 1))), inventories, dict.fromkeys(CLASSES, 1)
    )


class Trees:
    """The parts of each block in the order in which they came."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.forest = Forest()
        self.blocks: dict[int, dict[str, Part]] = {}
        self.made = 0

    def step(self) -> None:
        rng = self.rng
        block = rng.randrange(3)
        parts = self.blocks.setdefault(block, {})
        leaves = sorted(parts.keys() - {part.parent for part in parts.values()})
        leaves = [name for name in leaves if parts[name].parent is not None]
        what = rng.choice(["add", "add", "add", "change", "remove", "write"])
        if not parts:
            self.made += 1
            parts[f"r{self.made}"] = random_part(rng, f"r{self.made}", None)
            self.forest.write(block, parts.values(), order=block)
        elif what == "add":
            self.made += 1
            part = random_part(rng, f"p{self.made}", rng.choice(list(parts)))
            before = rng.choice([None, *(name for name, other in parts.items() if other.parent == part.parent)])
            self.forest.add(part, before)
            names = list(parts)
            names.insert(len(names) if before is None else names.index(before), part.id)
            parts[part.id] = part
            self.blocks[block] = {name: parts[name] for name in names}
        elif what == "change":
            name = rng.choice(list(parts))
            parts[name] = random_part(rng, name, parts[name].parent)
            self.forest.change(parts[name])
        elif what == "remove" and leaves:
            name = rng.choice(leaves)
            del parts[name]
            self.forest.remove(name)
        elif what == "write" and rng.random() < 0.1:
            self.forest.write(block, parts.values(), order=block)

    def check(self) -> None:
        anew = Forest()
        for block, parts in self.blocks.items():
            anew.write(block, parts.values(), order=block)
        assert described(self.forest) == described(anew)
        assert self.forest.rows.keys() == {name for parts in self.blocks.values() for name in parts}
        for name, row in self.forest.rows.items():
            assert self.forest.ids[row] == name
        free = np.flatnonzero(self.forest.root[: self.forest.n] < 0)
        assert {self.forest.ids[row] for row in free.tolist()} <= {""}


def described(forest: Forest) -> dict[str, object]:
    """Returns all that the columns say, with names instead of rows."""
    found: dict[str, object] = {}
    serving = {forest.ids[r]: {forest.ids[s] for s in roots} for r, roots in forest.sharing_with().items()}
    for name, row in forest.rows.items():
        parent, first = int(forest.parent[row]), forest.first_row(int(forest.block[row]))
        assert first is not None
        found[name] = (
            row - first,
            forest.ids[parent] if parent >= 0 else None,
            forest.ids[int(forest.root[row])],
            int(forest.leave[row]) - row,
            int(forest.block[row]),
            int(forest.order[row]),
            forest.traits.sets[int(forest.trait_set[row])],
            forest.aggregates.sets[int(forest.aggregate_set[row])],
            {c: forest.room(row, c) for c in forest.classes},
            serving.get(name),
        )
    for name, columns in forest.classes.items():
        for amount in (1, 3):
            found[f"{name} {amount}"] = sorted(forest.ids[row] for row in columns.with_room(amount).tolist())
    return found


@given(strategies.integers(0, 10**9))
def test_single_changes_are_as_if_all_was_written_anew(seed: int) -> None:
    trees = Trees(Random(seed))
    for number in range(60):
        trees.step()
        if number % 6 == 0:
            trees.check()
    trees.check()


def test_parts_come_and_go_below_others_in_a_wide_tree() -> None:
    forest = Forest()
    forest.write(0, [Part("root"), *(Part(f"p{i}", "root", inventories={"VGPU": Inventory(1)}) for i in range(20_000))])
    forest.add(Part("deep", "p7", inventories={"VGPU": Inventory(2)}))
    assert forest.ids[forest.rows["p7"] + 1] == "deep" and forest.ids[forest.rows["p8"] - 1] == "deep"
    assert forest.leave[forest.rows["root"]] - forest.rows["root"] == 20_002
    forest.remove("deep")
    for name in ("p0", "p19999"):
        forest.remove(name)
    assert forest.room(forest.rows["p1"], "VGPU") == 1 and len(forest.rows) == 19_999
