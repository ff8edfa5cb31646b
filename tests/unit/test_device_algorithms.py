"""Choosing devices: what is chosen fits, what fits is found, and scores are those of a plain computation."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.device_algorithms import (
    WHOLE,
    Choice,
    Chooser,
    DeviceAlgorithm,
    DeviceColumns,
    DeviceRequest,
    RequestMix,
    UnknownAlgorithm,
    algorithm_names,
    algorithms,
    find_algorithm,
)
from moorage.device_algorithms.columns import Floats, Options, options
from moorage.device_algorithms.fragmentation import yields
from moorage.device_algorithms.mix import REMEMBERED, RENEWED_EVERY, TYPICAL
from moorage.device_algorithms.pools import HIGHEST_PRICE, pools_of, prices, usable_pools
from moorage.device_algorithms.trace import Node, Task, replay
from moorage.device_algorithms.typical import NodeStates, TypicalRequests
from moorage_testkit.gpu_trace import draw, more_bound, more_devices, more_sharing, read_trace, trace_directory

NAMES = ("default", "aligned", "best-fit", "fgd", "first-fit", "most-allocated", "spread")
KINDS = 3
_FREE = st.sampled_from((0, 0, 180, 250, 470, 500, 810, WHOLE, WHOLE))


@st.composite
def _columns(draw: st.DrawFn) -> DeviceColumns:
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    free = np.array(draw(st.lists(st.lists(_FREE, min_size=width, max_size=width), min_size=rows, max_size=rows)))
    there = np.array(
        draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    )
    size = np.where(there | (free > 0), WHOLE, 0).astype(np.int64)
    beside_size = np.full((rows, 2), 16, np.int64)
    beside = np.array(
        draw(st.lists(st.lists(st.integers(0, 16), min_size=2, max_size=2), min_size=rows, max_size=rows))
    )
    kinds = np.array(draw(st.lists(st.integers(0, KINDS - 1), min_size=rows, max_size=rows)))
    zones = np.arange(width) // 2 + np.zeros((rows, 1), np.int64)
    return DeviceColumns(
        size, free.astype(np.int64), beside_size, beside, kinds, zones, np.tile(np.arange(width), (rows, 1))
    )


_REQUESTS = st.builds(
    DeviceRequest,
    devices=st.integers(0, 3),
    share=st.sampled_from((180, 250, 470, 810, WHOLE)),
    beside=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    kinds=st.none() | st.frozensets(st.integers(0, KINDS - 1)),
)


def _fits(columns: DeviceColumns, row: int, request: DeviceRequest) -> bool:
    return bool(
        (columns.free[row] >= request.share).sum() >= request.devices
        and (columns.beside_free[row] >= request.beside).all()
        and (request.kinds is None or int(columns.kinds[row]) in request.kinds)
    )


@given(_columns(), st.lists(_REQUESTS, min_size=1, max_size=12), st.sampled_from(NAMES))
@settings(deadline=None, max_examples=150)
def test_what_fits_is_found_and_what_is_found_fits(
    columns: DeviceColumns, requests: list[DeviceRequest], name: str
) -> None:
    chooser = Chooser(columns, find_algorithm(name))
    for request in requests:
        fitting = [row for row in range(len(columns)) if _fits(columns, row, request)]
        choice = chooser.choose(request)
        assert (choice is not None) == bool(fitting)
        chooser.mix.record(request)
        if choice is None:
            continue
        assert choice.row in fitting
        assert len(set(choice.devices)) == request.devices
        assert (columns.free[choice.row, list(choice.devices)] >= request.share).all()
        if name == "first-fit":
            usable = np.flatnonzero(columns.free[fitting[0]] >= request.share)
            assert choice[:2] == (fitting[0], tuple(usable[: request.devices].tolist()))
        chooser.take(choice, request)
        assert (columns.free >= 0).all() and (columns.beside_free >= 0).all()


@given(_columns(), st.lists(_REQUESTS, min_size=2, max_size=12), st.sampled_from(NAMES[1:]), st.data())
@settings(deadline=None, max_examples=100)
def test_scores_of_changed_rows_are_those_of_a_new_chooser(
    columns: DeviceColumns, requests: list[DeviceRequest], name: str, data: st.DataObject
) -> None:
    """Not for the default one: its prices are those of the time when the mix was learned."""
    mix = RequestMix()
    for request in requests:
        mix.record(request)
    chooser = Chooser(columns, find_algorithm(name), mix)
    held: list[tuple[Choice, DeviceRequest]] = []
    for request in requests:
        choice = chooser.choose(request)
        if choice is not None:
            chooser.take(choice, request)
            held.append((choice, request))
        gives_back: bool = data.draw(st.booleans())
        if held and gives_back:
            chooser.give_back(*held.pop(data.draw(st.integers(0, len(held) - 1))))
    fresh = Chooser(columns, find_algorithm(name), mix)
    for request in requests:
        assert np.allclose(chooser.best_by_row(request), fresh.best_by_row(request))


@given(_columns(), st.lists(_REQUESTS, min_size=2, max_size=8), st.sampled_from(NAMES), st.data())
@settings(deadline=None, max_examples=60)
def test_scoring_each_state_once_finds_what_scoring_each_row_does(
    columns: DeviceColumns, requests: list[DeviceRequest], name: str, data: st.DataObject
) -> None:
    many = columns.rows(np.tile(np.arange(len(columns)), 80))
    choosers = [Chooser(many.rows(np.arange(len(many))), find_algorithm(name)) for _ in range(2)]
    for request in requests:
        found = []
        for few, chooser in zip((0, len(many)), choosers, strict=True):
            with mock.patch("moorage.device_algorithms.chooser._FEW", few):
                found.append((chooser.choose(request), chooser.best_by_row(request).tolist()))
        assert found[0] == found[1]
        chosen = found[0][0]
        other: int = data.draw(st.integers(0, len(many) - 1))
        for chooser in choosers:
            chooser.columns.beside_free[other] = 0
            chooser.note_change([other])
            if chosen is not None:
                chooser.take(chosen, request)
            chooser.mix.record(request)


@given(_columns(), st.lists(_REQUESTS.filter(lambda r: r.devices > 0), min_size=1, max_size=5), st.booleans())
@settings(deadline=None, max_examples=150)
def test_what_is_unusable_is_what_a_plain_computation_says(
    columns: DeviceColumns, requests: list[DeviceRequest], by_pool: bool
) -> None:
    pools = pools_of(columns)
    shares = np.arange(1, len(requests) + 1) / sum(range(1, len(requests) + 1))
    usable = usable_pools(pools, requests)
    for row, number in enumerate(pools.of_row.tolist()):
        expected = [
            int((columns.size[row] > 0).sum()) >= r.devices and (r.kinds is None or int(columns.kinds[row]) in r.kinds)
            for r in requests
        ]
        assert usable[:, number].tolist() == expected
    weights = usable.T * shares if by_pool else shares[None]
    of_row = pools.of_row if by_pool else np.zeros(len(columns), np.int64)
    typical = TypicalRequests(requests, weights)
    states = NodeStates(columns.free, np.arange(len(columns)), columns.beside_free, of_row)
    for filled in (0.0, 0.3):
        found = typical.unusable(states, filled)
        for row in range(len(columns)):
            expected_sum = 0.0
            free = columns.free[row].tolist()
            for request, weight in zip(requests, weights[of_row[row]].tolist(), strict=True):
                copies = sum(level // request.share for level in free) // request.devices
                for have, ask in zip(columns.beside_free[row].tolist(), request.beside, strict=True):
                    copies = min(copies, have // ask) if ask else copies
                small = sum(level for level in free if level < request.share)
                one = small if copies else sum(free)
                expected_sum += weight * ((1 - filled) * one + filled * (sum(free) - copies * request.amount))
            assert found[row] == pytest.approx(expected_sum / WHOLE, abs=1e-4)


@given(
    st.lists(st.booleans(), min_size=8, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.integers(1, 4),
)
@settings(deadline=None)
def test_devices_of_several_are_taken_of_the_fewest_zones(there: list[bool], zones: list[int], count: int) -> None:
    free = np.array([there], np.int64) * WHOLE
    beside = np.zeros((1, 0), np.int64)
    columns = DeviceColumns(free, free.copy(), beside, beside, np.zeros(1, np.int64), np.array([zones]))
    found = options(columns, DeviceRequest(count), np.arange(1))
    usable = [device for device in range(8) if there[device]]
    if len(usable) < count:
        assert not len(found.rows)
        return
    fewest = min(len({zones[device] for device in some}) for some in combinations(usable, count))
    assert len({zones[device] for device in found.devices[0].tolist()}) == fewest


def test_the_mix_forgets_and_is_renewed_now_and_then() -> None:
    mix = RequestMix()
    old, new = DeviceRequest(1), DeviceRequest(2)
    mix.record(old)
    assert mix.requests == [old]  # soon, so that the first requests are not chosen blindly
    for _ in range(200):
        mix.record(old)
    version = mix.version
    for _ in range(2 * RENEWED_EVERY):
        mix.record(new)
    assert mix.version == version + 2
    assert set(mix.requests) == {old, new} and math.isclose(mix.weights.sum(), 1)
    for _ in range(REMEMBERED + RENEWED_EVERY):
        mix.record(new)
    assert mix.requests == [new]


def test_a_mix_of_many_requests_is_sampled_and_what_was_asked_is_counted_exactly() -> None:
    mix = RequestMix()
    rng = np.random.default_rng(3)
    past: list[DeviceRequest] = []
    version = 0
    while len(past) < REMEMBERED + 500 or mix.version == version:
        version = mix.version
        kinds = None if rng.random() < 0.5 else frozenset({int(rng.integers(4))})
        large = len(past) % 100 == 0
        past.append(DeviceRequest(8 if large else 1, WHOLE, (int(rng.integers(100_000)), 0), kinds))
        mix.record(past[-1])
    past = past[-REMEMBERED:]
    assert dict(zip(mix.distinct, mix.counts.tolist(), strict=True)) == Counter(past)
    assert len(mix.sample) == TYPICAL and set(mix.sample) <= set(past) and math.isclose(mix.sample_weights.sum(), 1)
    for of in (lambda r: r.devices == 8, lambda r: r.kinds is None, lambda r: r.beside[0] < 50_000):
        weight = sum(w for request, w in zip(mix.sample, mix.sample_weights.tolist(), strict=True) if of(request))
        assert weight == pytest.approx(sum(map(of, past)) / len(past), abs=0.05)
    assert sum(request.devices == 8 for request in mix.sample) > 2  # although only one in 100 asks so much


def _nodes(kinds: list[int], devices: list[int]) -> DeviceColumns:
    """Makes nodes that have so many devices of a kind, and nothing beside."""
    free = np.where(np.arange(max(devices)) < np.array(devices)[:, None], WHOLE, 0).astype(np.int64)
    beside = np.zeros((len(kinds), 0), np.int64)
    return DeviceColumns(free, free.copy(), beside, beside, np.array(kinds))


def test_devices_cost_more_the_more_of_them_is_asked_by_those_who_can_go_nowhere_else() -> None:
    columns = _nodes([0, 0, 0, 1], [2, 2, 2, 2])
    mix = RequestMix()
    for _ in range(100):
        mix.record(DeviceRequest(1))
        mix.record(DeviceRequest(1, kinds=frozenset({1})))
    found = prices(columns, mix, pools_of(columns))[:, 0]
    assert found[0] < 0.1 and found[1] == HIGHEST_PRICE  # half of the demand, a quarter of the devices
    chooser = Chooser(columns, find_algorithm(), mix)
    columns.free[0, 0] = 0  # the scarce node would be the better fit otherwise
    chosen = chooser.choose(DeviceRequest(1))
    assert chosen is not None and columns.kinds[chosen.row] == 0


def test_what_some_can_find_elsewhere_is_not_dear() -> None:
    """Half of the requests are for kinds 0 and 1, some for 1 alone: the former can all go to 0."""
    columns = _nodes([0, 0, 1, 2, 2, 2, 2, 2], [4] * 8)
    mix = RequestMix()
    for number in range(300):
        mix.record(DeviceRequest(1, kinds=frozenset({0, 1}) if number % 10 else frozenset({1})))
        mix.record(DeviceRequest(1))
    by_kind = dict(
        zip(pools_of(columns).kinds.tolist(), prices(columns, mix, pools_of(columns))[:, 0].tolist(), strict=True)
    )
    assert by_kind[2] < 0.1 * by_kind[0] and by_kind[0] == pytest.approx(by_kind[1], rel=0.1)


def test_nodes_that_can_give_many_devices_at_once_are_spared_for_those_who_ask_so_many() -> None:
    columns = _nodes([0] * 8, [2, 2, 2, 2, 2, 2, 4, 4])
    mix = RequestMix()
    for _ in range(100):
        for request in (DeviceRequest(1), DeviceRequest(2), DeviceRequest(4), DeviceRequest(8)):
            mix.record(request)  # nothing can serve the last: it makes nothing dear
    pools = pools_of(columns)
    found = dict(zip(pools.devices.tolist(), prices(columns, mix, pools)[:, 0].tolist(), strict=True))
    assert found[4] > 10 * found[2]
    chooser = Chooser(columns, find_algorithm(), mix)
    for _ in range(6):
        chosen = chooser.choose(DeviceRequest(2))
        assert chosen is not None and chosen.row < 6
        chooser.take(chosen, DeviceRequest(2))


def test_nodes_with_many_devices_are_spared_before_anyone_asked_for_many() -> None:
    columns = _nodes([0] * 200, [8] * 100 + [2] * 100)
    mix = RequestMix()
    chooser = Chooser(columns, find_algorithm(), mix)
    for _ in range(8):
        mix.record(DeviceRequest(1))
        chosen = chooser.choose(DeviceRequest(1))
        assert chosen is not None and chosen.row >= 100
        chooser.take(chosen, DeviceRequest(1))


def test_cpus_cost_more_where_those_who_can_go_nowhere_else_need_them() -> None:
    columns = _nodes([0] * 6 + [1] * 6, [4] * 12)
    columns.beside_size = np.full((12, 1), 64, np.int64)
    columns.beside_free = columns.beside_size.copy()
    mix = RequestMix()
    few, many = DeviceRequest(1, WHOLE, (2,)), DeviceRequest(1, WHOLE, (30,))
    for number in range(450):
        mix.record(few._replace(kinds=frozenset({0})) if number % 9 < 5 else many._replace(kinds=frozenset({1})))
    pools = pools_of(columns)
    found = prices(columns, mix, pools)
    assert found[0, 0] > found[1, 0] and found[0, 1] < 0.5 * found[1, 1]
    kinds = []
    for request in (many, few):
        chosen = Chooser(columns, find_algorithm(), mix).choose(request)
        assert chosen is not None
        kinds.append(int(columns.kinds[chosen.row]))
    assert kinds == [0, 1]
    for _ in range(400):
        mix.record(DeviceRequest(1, WHOLE, (65,)))  # no node has so many: they make nothing dear
    assert prices(columns, mix, pools) == pytest.approx(found, rel=0.02)


def test_room_is_kept_for_those_who_put_most_devices_to_use_where_cpus_run_out_first() -> None:
    """Twice as many CPUs are asked as there are when all devices are: who takes few of them should find room longest."""
    nodes = [Node(f"n{number}", (64_000, 512_000), 8, "a") for number in range(24)]
    ahead = []
    for seed in range(3):
        cpus = np.random.default_rng(seed).choice([4000, 8000, 12000, 32000], size=250).tolist()
        tasks = [Task(f"t{number}", DeviceRequest(1, WHOLE, (each, 8000))) for number, each in enumerate(cpus)]
        found = {name: replay(nodes, tasks, find_algorithm(name)).allocated for name in ("default", "first-fit", "fgd")}
        ahead.append(found["default"] - max(found["first-fit"], found["fgd"]))
    assert np.mean(ahead) > 3, ahead


@given(_columns(), st.lists(_REQUESTS.filter(lambda r: r.devices > 0), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_requests_count_less_the_more_they_take_of_what_is_scarcer_than_devices(
    columns: DeviceColumns, requests: list[DeviceRequest]
) -> None:
    mix = RequestMix()
    for request in requests:
        mix.record(request)
    there = [max(1, int(columns.size.sum())), *columns.beside_size.sum(axis=0).tolist()]
    served = [
        (request.amount * count, *(amount * count for amount in request.beside))
        for request, count in zip(mix.distinct, mix.counts.tolist(), strict=True)
        if any(
            devices >= request.devices and (request.kinds is None or kind in request.kinds)
            for devices, kind in zip((columns.size > 0).sum(axis=1).tolist(), columns.kinds.tolist(), strict=True)
        )
    ]
    asked = [sum(each) for each in zip(*served, strict=True)] or [0.0] * 3
    found = yields(columns, mix, pools_of(columns), requests).tolist()
    for request, part in zip(requests, found, strict=True):
        if not served:
            continue  # nothing is learned of what nobody can serve
        expected = 1.0
        for resource, amount in enumerate(request.beside, 1):
            ratio = (asked[0] / there[0]) / (asked[resource] / there[resource]) if asked[resource] else 1.0
            takes = (request.amount / there[0]) / (amount / there[resource]) if amount else 1.0
            if ratio < 1 and takes < 1:
                expected = min(expected, takes ** (4 * (1 - ratio)))
        assert part == pytest.approx(expected)


def test_a_package_brings_an_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "last_fit.py").write_text(
        "from moorage.device_algorithms import DeviceAlgorithm\n"
        "LAST = DeviceAlgorithm('ignored', lambda columns, mix: lambda options, request: options.rows * 1.0)\n"
        "NONE = 7\n"
    )
    about = tmp_path / "last_fit-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: last-fit\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[moorage.device_algorithms]\nlast-fit = last_fit:LAST\nnone = last_fit:NONE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    algorithms._installed.cache_clear()
    find_algorithm.cache_clear()
    try:
        assert algorithm_names()[0] == "default" and {"last-fit", "none", *NAMES} == set(algorithm_names())
        free = np.full((3, 1), WHOLE, np.int64)
        beside = np.zeros((3, 0), np.int64)
        columns = DeviceColumns(free, free.copy(), beside, beside, np.zeros(3, np.int64))
        choice = Chooser(columns, find_algorithm("last-fit")).choose(DeviceRequest(1))
        assert choice is not None and choice.row == 2
        with pytest.raises(TypeError, match="last_fit:NONE"):
            find_algorithm("none")
        with pytest.raises(UnknownAlgorithm, match="'worst-fit'; there are default, "):
            find_algorithm("worst-fit")
    finally:
        monkeypatch.undo()
        algorithms._installed.cache_clear()
        find_algorithm.cache_clear()


def test_an_algorithm_without_numbers_still_places() -> None:
    free = np.full((2, 2), WHOLE, np.int64)
    beside = np.zeros((2, 0), np.int64)
    columns = DeviceColumns(free, free.copy(), beside, beside, np.zeros(2, np.int64))

    def scores(found: Options, request: DeviceRequest) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.full(len(found.rows), np.nan)

    assert Chooser(columns, DeviceAlgorithm("bad", lambda columns, mix: scores)).choose(DeviceRequest(1)) is not None


_NAMES_OF_WORKLOADS = (
    "trace",
    "sharing",
    "several",
    "all several",
    "half bound",
    "bound",
    "half bound, several",
    "half bound, sharing",
    "bound, sharing, several",
)


def _workloads(nodes: list[Node], tasks: list[Task], seed: int) -> dict[str, list[Task]]:
    """Returns workloads with more sharing, more devices a task and more tasks bound to models, alone and together."""
    made: dict[str, list[Task]] = {
        "trace": tasks,
        "sharing": more_sharing(tasks, 0.6, seed),
        "several": more_devices(tasks, 0.3, seed),
        "all several": more_devices(tasks, 1.0, seed),
        "half bound": more_bound(nodes, tasks, 0.5, seed),
        "bound": more_bound(nodes, tasks, 1.0, seed),
    }
    made["half bound, several"] = more_bound(nodes, made["several"], 0.5, seed + 1)
    made["half bound, sharing"] = more_bound(nodes, made["sharing"], 0.5, seed + 1)
    made["bound, sharing, several"] = more_bound(nodes, more_devices(made["sharing"], 0.3, seed + 2), 1.0, seed + 1)
    return {name: draw(nodes, some, seed) for name, some in made.items()}


def _allocated(nodes: list[Node], tasks: list[Task], name: str) -> tuple[float, float]:
    """Returns the part that is allocated once as much was asked as there is, and in the end."""
    placed = replay(nodes, tasks, find_algorithm(name)).placements
    there = WHOLE * sum(node.devices for node in nodes)
    asked = np.cumsum([task.request.amount for task in tasks])
    taken = np.cumsum([bool(p.node) * task.request.amount for p, task in zip(placed, tasks, strict=True)])
    return 100 * taken[np.searchsorted(asked, there)] / there, 100 * taken[-1] / there


def _ahead(nodes: list[Node], tasks: list[Task]) -> Floats:
    """Returns how much more the default allocates than the better of first-fit and FGD."""
    default, *others = (np.array(_allocated(nodes, tasks, name)) for name in ("default", "first-fit", "fgd"))
    ahead: Floats = default - np.maximum(*others)
    return ahead


def test_the_default_allocates_more_of_the_trace_than_first_fit_and_fgd() -> None:
    """One seed on an eighth of the nodes, where one task more or less is a third of a percent; the long test has all of it."""
    directory = trace_directory()
    if directory is None:
        pytest.skip("MOORAGE_DATA does not name the directory with the trace")
    nodes, tasks = read_trace(directory)
    nodes = nodes[::8]
    ahead = {name: _ahead(nodes, drawn) for name, drawn in _workloads(nodes, tasks, 1).items()}
    assert min(found.min() for found in ahead.values()) > -1.0, ahead
    assert np.mean([found.mean() for found in ahead.values()]) > 0.8, ahead


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", _NAMES_OF_WORKLOADS)
def test_the_default_allocates_as_much_as_the_better_of_first_fit_and_fgd(name: str) -> None:
    directory = trace_directory()
    if directory is None:
        pytest.skip("MOORAGE_DATA does not name the directory with the trace")
    nodes, tasks = read_trace(directory)
    ahead = np.mean([_ahead(nodes, _workloads(nodes, tasks, seed)[name]) for seed in range(10)], axis=0)
    assert ahead.min() > -0.1, ahead
