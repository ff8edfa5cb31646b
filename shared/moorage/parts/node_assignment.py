"""Finds parts of one node for all pods that it is to take, jointly; or of several nodes that reach the same parts.

Pods are placed one after the other, each by the solver with what the others leave. States that failed are remembered in a form
in which equal subtrees are interchangeable, so that equal pods and equal parts cost no factorial.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from moorage.qos.role_locks import ROLE_LOCK, fits_beside

from .alike_devices import held_choices
from .device_search import NO_DEVICE
from .pod_choices import NodePart, NodeTree, PodProblem
from .request import Request
from .solver import Budget, Problem, Slot, choices


class Grant(NamedTuple):
    """An amount of a part that serves a request for devices. With admin access it is 0."""

    part: str
    need: str
    resource: str
    amount: int
    resource_class: str = ""


class PodShare(NamedTuple):
    """The share of one pod: amounts by part and class, and which of them serve its requests for devices."""

    amounts: dict[str, dict[str, int]]
    grants: tuple[Grant, ...] = ()


def assign_on_nodes(
    trees: Sequence[NodeTree],
    pods: Sequence[Sequence[tuple[Request, int]]],
    shared: Collection[str],
    budget: Budget,
) -> list[list[list[PodShare]]] | None:
    """Returns the parts of each pod (by tree and kind of pod, in the order of `pods`), or None as the proof that they do not fit
    together. If the budget is used up it returns None, and `budget.spent` is set. `shared`: the ids of parts that are the same
    in all trees that have them."""
    joint, places = (trees[0], [()]) if len(trees) == 1 else _joined(trees, shared)
    problems: list[tuple[int, int, PodProblem]] = []
    for at, (tree, place) in enumerate(zip(trees, places, strict=True)):
        for kind, (pod, count) in enumerate(pods[at]):
            if count:
                problem = tree.problem(pod)
                if problem is None:
                    return None
                problem = _moved(problem, tree, joint, place) if place else problem
                problems += [(at, kind, problem)] * count
    if not _has_enough(joint, [problem for _, _, problem in problems]):
        return None
    problems.sort(key=lambda item: -len(item[2].slots))
    search = _Joint(joint, [[problem] for _, _, problem in problems], budget)
    if len(trees) == 1 and joint.table.has_alike:
        found = held_choices(joint, [problem for _, _, problem in problems], search.run_without, search.first_without)
    else:
        found = search.run()
    if found is None:
        return None
    result: list[list[list[PodShare]]] = [[[] for _ in kinds] for kinds in pods]
    room = list(joint.room)
    for (at, kind, problem), (_, choice) in zip(problems, found, strict=True):
        result[at][kind].append(_share(trees[at], problem, choice, room))
        room = _after(problem, room, choice)
    for tree, kinds in zip(trees, result, strict=True):
        for shares in kinds:
            shares.sort(key=lambda share, tree=tree: [tree.number[part] for part in share.amounts])  # type: ignore[misc]
    return result


class FreePod(NamedTuple):
    """Equal pods that may go to several nodes. `requests`: by tree, None where they may not go; `takes`: of each node itself."""

    requests: Sequence[Request | None]
    takes: Mapping[str, int]
    number: int


def distribute_pods(
    trees: Sequence[NodeTree],
    rooms: Sequence[Mapping[str, int]],
    pods: Sequence[FreePod],
    shared: Collection[str],
    budget: Budget,
) -> list[list[int]] | None:
    """Returns how many pods of each kind go to each tree so that all fit together, or None as the proof that they do not. `rooms`:
    what nodes themselves have free, by names that no part has; `shared` as for `assign_on_nodes`. If the budget is used up it
    returns None, and `budget.spent` is set."""
    joint, places = _joined(trees, shared, rooms)
    made: list[tuple[int, list[int], list[PodProblem]]] = []
    for kind, pod in enumerate(pods):
        where: list[int] = []
        problems: list[PodProblem] = []
        for at, (tree, request) in enumerate(zip(trees, pod.requests, strict=True)):
            problem = tree.problem(request) if request is not None else None
            if problem is not None:
                root = places[at][0]
                takes = tuple((joint.cells[root, name], amount) for name, amount in pod.takes.items() if amount)
                where.append(at)
                problems.append(replace(_moved(problem, tree, joint, places[at]), node_takes=takes))
        if not problems and pod.number:
            return None
        made += [(kind, where, problems)] * pod.number
    made.sort(key=lambda item: (len(item[1]), -max(len(problem.slots) for problem in item[2])))
    found = _Joint(joint, [problems for _, _, problems in made], budget).run()
    if found is None:
        return None
    counts = [[0] * len(trees) for _ in pods]
    for (kind, where, _), (number, _) in zip(made, found, strict=True):
        counts[kind][where[number]] += 1
    return counts


def _joined(
    trees: Sequence[NodeTree], shared: Collection[str], rooms: Sequence[Mapping[str, int]] = ()
) -> tuple[NodeTree, list[list[int]]]:
    """Returns one tree of all parts, in which those that trees have in common are there once, and by tree the place of each of its
    parts. Where trees differ in what is free of such a part, the least is. `rooms`: what the first part of each tree has, too."""
    parts: list[NodePart] = []
    known: dict[str, int] = {}
    places: list[list[int]] = []
    for number, tree in enumerate(trees):
        place: list[int] = []
        for part in tree.parts:
            if rooms and not place:
                part = part._replace(free={**part.free, **rooms[number]})
            at = known.get(part.id)
            if at is None:
                at = len(parts)
                if part.id in shared:
                    known[part.id] = at
                takes = {
                    name: tuple(take._replace(part=place[take.part]) for take in found)
                    for name, found in part.consumes.items()
                }
                parent = place[part.parent] if part.parent >= 0 else -1
                parts.append(part._replace(parent=parent, consumes=takes))
            else:
                free = dict(parts[at].free)
                for name, amount in part.free.items():
                    free[name] = min(amount, free.get(name, amount))
                parts[at] = parts[at]._replace(free=free)
            place.append(at)
        places.append(place)
    return NodeTree(parts), places


def _moved(problem: PodProblem, tree: NodeTree, joint: NodeTree, place: Sequence[int]) -> PodProblem:
    """Returns the problem with the cells of a joint tree."""
    cell = [0] * len(tree.room)
    for (part, name), own in tree.cells.items():
        cell[own] = joint.cells[place[part], name]
    more = len(joint.room) - len(tree.room)

    def moved(takes: Sequence[tuple[tuple[int, int], ...]]) -> list[tuple[tuple[int, int], ...]]:
        return [tuple((cell[c] if c < len(cell) else c + more, amount) for c, amount in taken) for taken in takes]

    slots = [
        slot._replace(
            takes=moved(slot.takes),
            device=slot.device._replace(once=moved(slot.device.once)) if slot.device is not None else None,
        )
        for slot in problem.slots
    ]
    return replace(problem, slots=slots, place=place, key=id(problem))


def _has_enough(tree: NodeTree, problems: Sequence[PodProblem]) -> bool:
    """Compares what is asked with what all parts have. A necessary condition."""
    need: dict[str, int] = {}
    for problem in problems:
        for name, amount in problem.total.items():
            need[name] = need.get(name, 0) + amount
    have: dict[str, int] = {}
    for (_, name), cell in tree.cells.items():
        have[name] = have.get(name, 0) + max(0, tree.room[cell])
    return all(have.get(name, 0) >= amount for name, amount in need.items())


def _share(tree: NodeTree, problem: PodProblem, choice: Sequence[int], room: Sequence[int]) -> PodShare:
    amounts: dict[int, dict[str, int]] = {}
    grants: list[Grant] = []
    left = list(room)
    for s, (slot, k) in enumerate(zip(problem.slots, choice, strict=True)):
        part, given = slot.parts[k], problem.given[s][k if slot.device is not None else 0]
        if part == NO_DEVICE:
            continue
        resources = dict(given.resources)
        if slot.device is not None and _takes_once(slot, k, left):
            resources |= given.once
            for cell, amount in slot.device.once[k]:
                left[cell] -= amount
        for name, amount in resources.items():
            if amount or slot.device is None:
                here = amounts.setdefault(part, {})
                here[name] = here.get(name, 0) + amount
        if slot.device is not None:
            served = resources or {"": 0}
            of = given.need, given.resource_class
            grants += [Grant(tree.parts[part].id, of[0], name, amount, of[1]) for name, amount in served.items()]
    return PodShare({tree.parts[part].id: amounts[part] for part in sorted(amounts)}, tuple(grants))


def _takes_once(slot: Slot, k: int, room: Sequence[int]) -> bool:
    """Returns whether a choice is the first that has its device."""
    once = slot.device.once[k] if slot.device is not None else ()
    return bool(once) and room[once[0][0]] >= 1


def _after(problem: PodProblem, room: Sequence[int], choice: Sequence[int]) -> list[int]:
    """Returns what a pod leaves."""
    left = list(room)
    for slot, k in zip(problem.slots, choice, strict=True):
        takes = [
            *slot.takes[k],
            *(slot.device.once[k] if slot.device is not None and _takes_once(slot, k, left) else ()),
        ]
        for cell, amount in takes:
            if cell < len(left):
                left[cell] -= amount
    for cell, amount in problem.node_takes:
        left[cell] -= amount
    return left


class _Joint:
    """Searches for choices of all pods. A pod has one problem, or one for each node that it may go to."""

    def __init__(self, tree: NodeTree, pods: Sequence[Sequence[PodProblem]], budget: Budget) -> None:
        self._tree, self._pods, self._budget = tree, pods, budget
        self._failed: set[object] = set()
        kinds: dict[object, int] = {}
        # A part is interchangeable with another only if the same slots may take it.
        offered: list[list[object]] = [[] for _ in tree.parts]
        for problem in {id(p): p for problems in pods for p in problems}.values():
            key = problem.key or id(problem)
            if problem.node_takes or not problem.slots:
                offered[problem.place[0] if problem.place else 0].append((key, -1, 0))
            for s, slot in enumerate(problem.slots):
                for k, part in enumerate(slot.parts):
                    mark: object = slot.covers[k] if slot.covers else 0
                    if slot.device is not None:
                        values = tuple(v.of[s][k] for v in problem.values if s in v.of)
                        amounts = tuple(amount for _, amount in slot.takes[k])
                        mark = slot.device.alternatives[k], slot.device.errors[k], values, amounts
                    if part != NO_DEVICE:
                        offered[problem.place[part] if problem.place else part].append((key, s, mark))
        self._kinds = [
            kinds.setdefault((tuple(offered[i]), tuple(sorted(part.units.items())), _sources(tree, i)), len(kinds))
            for i, part in enumerate(tree.parts)
        ]
        self._cells: list[list[tuple[str, int]]] = [[] for _ in tree.parts]
        #: The locks of zones, by their cells, with what they have.
        self._locks: dict[int, int] = {}
        for (i, name), cell in tree.cells.items():
            self._cells[i].append((name, cell))
            if name == ROLE_LOCK and name in tree.parts[i].units:
                self._locks[cell] = tree.parts[i].units[name].capacity

    def run_without(self, parts: Collection[int]) -> list[tuple[int, list[int]]] | None:
        """Returns what `run` does where no pod may have these parts."""
        if self._budget.spent:
            return None
        tree = self._tree
        return _Joint(tree, self._pods, self._budget).run(_room_without(tree, tree.room, parts))

    def first_without(self, parts: Sequence[Collection[int]]) -> list[tuple[int, list[int]]] | None:
        """Gives one pod after the other its first choice without these parts. None if a pod has no choice left."""
        room = list(self._tree.room)
        chosen: list[tuple[int, list[int]]] = []
        for at, out in enumerate(parts):
            choice = next(self._choices(at, _room_without(self._tree, room, out)), None)
            if choice is None:
                return None
            chosen.append(choice)
            room = _after(self._pods[at][choice[0]], room, choice[1])
        return chosen

    def run(self, room: Sequence[int] | None = None) -> list[tuple[int, list[int]]] | None:
        """Returns the number of the problem, and its choices, for each pod. It searches depth first, without recursion: a node may take
        hundreds of pods."""
        count = len(self._pods)
        if not count:
            return []
        rooms = [list(self._tree.room if room is None else room)]
        open_choices = [self._choices(0, rooms[0])]
        chosen: list[tuple[int, list[int]]] = []
        while open_choices:
            at = len(open_choices) - 1
            choice = next(open_choices[-1], None)
            if self._budget.left <= 0:
                self._budget.spent = True
                return None
            if choice is None:
                open_choices.pop()
                self._failed.add(self._state(at, rooms.pop()))
                if chosen:
                    chosen.pop()
                continue
            left = _after(self._pods[at][choice[0]], rooms[-1], choice[1])
            if at + 1 == count:
                return [*chosen, choice]
            if self._failed and self._state(at + 1, left) in self._failed:
                self._budget.left -= 1
                continue
            chosen.append(choice)
            rooms.append(left)
            open_choices.append(self._choices(at + 1, left))
        return None

    def _choices(self, at: int, room: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        for number, problem in enumerate(self._pods[at]):
            if any(room[cell] < amount for cell, amount in problem.node_takes):
                continue
            if not problem.slots:
                yield number, []
                continue
            own = [*room, *problem.own_room]
            if lock := problem.total.get(ROLE_LOCK):
                for cell, capacity in self._locks.items():
                    if not fits_beside(capacity - room[cell], lock):
                        own[cell] = 0
            found = Problem(problem.slots, own, problem.leave, problem.subtrees, problem.conditions, problem.values)
            for chosen in choices(found, self._budget):
                yield number, chosen

    def _state(self, at: int, room: Sequence[int]) -> object:
        """Names a state. Trees that differ by the order of equal subtrees have one name."""
        parts, children = self._tree.parts, self._tree.children
        forms: list[object] = [None] * len(parts)
        roots: list[object] = []
        for i in range(len(parts) - 1, -1, -1):
            below = sorted((forms[child] for child in children[i]), key=repr)
            forms[i] = (self._kinds[i], tuple((name, room[cell]) for name, cell in self._cells[i]), tuple(below))
            if parts[i].parent < 0:
                roots.append(forms[i])
        return at, tuple(sorted(roots, key=repr))


def _room_without(tree: NodeTree, room: Sequence[int], parts: Collection[int]) -> list[int]:
    """Returns what is free where nothing of these parts is."""
    left = list(room)
    for (part, _), cell in tree.cells.items() if parts else ():
        if part in parts:
            left[cell] = 0
    return left


def _sources(tree: NodeTree, i: int) -> object:
    """Names the ancestors of which a part takes: by how far above it they are."""
    consumes = tree.parts[i].consumes
    if not consumes:
        return ()
    above: list[int] = []
    while i >= 0:
        above.append(i)
        i = tree.parts[i].parent
    return tuple(
        sorted(
            (name, tuple((above.index(t.part), t.resource, t.amount) for t in found))
            for name, found in consumes.items()
        )
    )
