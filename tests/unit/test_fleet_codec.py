"""Bytes from Redis are what was written, or are refused whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.fleet import Fleet, FleetWriter, Malformed
from moorage.fleet.delta import ClusterDelta, FleetDelta, decode, encode, merge
from moorage_testkit.fleets import node, writer_of


def _writer() -> FleetWriter:
    nodes = [node(cpu="8", memory="32Gi", labels={"zone": f"z{i % 2}"}, exclusive=i) for i in range(3)]
    return writer_of({"p/a": nodes, "p/b": [node(cpu="1")]}, labels={"p/a": {"region": "eu"}})


GOOD = _writer().flush(1, 1).patch


@given(st.binary(max_size=400))
def test_junk_is_refused(data: bytes) -> None:
    fleet = Fleet()
    try:
        fleet.apply(decode(data))
    except Malformed:
        return
    assert fleet.size == 0 or fleet.names  # a patch by chance


@settings(max_examples=400)
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, 40))
def test_a_damaged_patch_is_refused_or_applied_never_half(at: int, byte: int, cut: int) -> None:
    damaged = (GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])[: len(GOOD) - cut]
    fleet = Fleet()
    try:
        fleet.apply(decode(damaged))
    except Malformed:
        assert (fleet.n, fleet.size, fleet.ids) == (0, 0, {})
    else:
        assert int((fleet.cluster[: fleet.n] >= 0).sum()) == 4


@pytest.mark.parametrize(
    "patch",
    [
        FleetDelta(clusters=[ClusterDelta(id=-1, name="p/a")]),
        FleetDelta(clusters=[ClusterDelta(id=1 << 40, name="p/a")]),
        FleetDelta(clusters=[ClusterDelta(id=0, name="p/a", state=8)]),
        FleetDelta(clusters=[ClusterDelta(id=0, name="p/a", version=1 << 63)]),
        FleetDelta(clusters=[ClusterDelta(id=0, name="p/a", rows=2, names="n")]),
        FleetDelta(clusters=[ClusterDelta(id=0, name="p/a", rows=2, names="n\0n")], flags=b"\1"),
        FleetDelta(clusters=[ClusterDelta(id=0, name="p/a", rows=1, names="n")], flags=b"\1"),
        FleetDelta(flags=b"\1"),
        FleetDelta(heard=bytes(4)),
        FleetDelta(heard=b"\xff\xff\xff\xff", heard_at=bytes(8)),
        FleetDelta(labels_from=-1, label_sets=[{}]),
    ],
)
def test_columns_that_do_not_fit_their_header_are_refused(patch: FleetDelta) -> None:
    with pytest.raises(Malformed):
        decode(encode(patch))


def test_a_row_that_names_an_unknown_dictionary_entry_is_refused_before_anything_changes() -> None:
    patch = decode(GOOD)
    patch.label_sets = patch.label_sets[:-1]
    fleet = Fleet()
    with pytest.raises(Malformed):
        fleet.apply(patch)
    assert (fleet.n, fleet.size) == (0, 0)
    patch.labels_from = 7
    with pytest.raises(Malformed):
        fleet.apply(patch)


def test_equal_values_travel_once() -> None:
    same = writer_of({"p/a": [node(cpu="8", memory="1Gi", hostname=False) for _ in range(1000)]}).flush(1, 1)
    names = sum(len(f"n-{i}") + 1 for i in range(1000))
    assert len(same.patch) < names + 400


def test_an_old_part_does_not_undo_a_newer_one() -> None:
    writer, fleet = _writer(), Fleet()
    first = writer.flush(1, 1)
    row = writer.row(0, "n-1")
    assert row is not None
    writer.put(0, "p/a", [row._replace(requested={"cpu": 500})])
    second = writer.flush(1, 2)
    for flush in (first, second, first):
        fleet.apply(decode(flush.patch))
    free = fleet.free("cpu")
    assert free is not None
    assert free[fleet.row_of(0, "n-1")] == 7500
    assert fleet.epoch == (1, 2)


def test_many_snapshots_as_one_patch() -> None:
    writer = _writer()
    writer.put(2, "p/c", [row for row in [writer.row(0, "n-2")] if row])
    fleet, one = writer.fleet, Fleet()
    one.label_sets, one.taint_sets = fleet.label_sets, fleet.taint_sets
    one.apply(merge(decode(writer.snapshot(cid, 1, cid + 1)) for cid in range(3)))
    for cid in range(3):
        for name, at in fleet.places(cid).items():
            there = one.row_of(cid, name)
            assert there is not None
            for resource in ("cpu", "memory", "pods"):
                mine, theirs = fleet.free(resource), one.free(resource)
                assert mine is not None
                assert theirs is not None
                assert mine[at] == theirs[there]
            assert fleet.labelset[at] == one.labelset[there]
    assert np.array_equal(one.sums("cpu")[0], fleet.sums("cpu")[0])
