"""Sets survive encoding and stay small; malformed sets are refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.candidates import decode_set, pack, unpack, unpack_levels
from moorage.controllers.hardware.core.levels import levels_of
from moorage.model.candidates import LEVELS, Answer, AppAnswer, CandidateGroup, Level, PackedSet


@given(st.lists(st.booleans(), max_size=300), st.integers(0, 400))
def test_a_set_is_decoded_for_any_number_of_clusters(bits: list[bool], size: int) -> None:
    mask = np.array(bits, dtype=np.bool_)
    expected = np.zeros(size, dtype=np.bool_)
    expected[: min(size, mask.size)] = mask[:size]
    got = decode_set(pack(mask), {}, size)
    assert np.array_equal(got.mask, expected)
    assert got.unknown == int(mask[size:].sum())


@pytest.mark.parametrize("density", [0.0, 0.0001, 0.01, 0.5, 0.999, 1.0])
def test_large_sets_are_packed_small(density: float) -> None:
    mask = np.random.default_rng(7).random(100_000) < density
    packed = pack(mask)
    assert np.array_equal(unpack(packed, {}, mask.size), mask)
    assert len(packed.data) <= 12_600
    if density in (0.0, 1.0):
        assert len(packed.data) < 50


def test_an_answer_for_100_000_clusters_is_small() -> None:
    mask = np.random.default_rng(7).random(100_000) < 0.5
    group = CandidateGroup(mode="allow", clusters=pack(mask))
    message = msgspec.json.encode(
        Answer(id="x" * 22, cause="y" * 22, apps={"fwall": AppAnswer(groups=[group])}, epoch="1.1")
    )
    assert len(pack(mask).data) <= 12_600
    assert len(message) <= 20_000


def test_unknown_names_are_ignored_and_counted() -> None:
    got = decode_set(["lab/a", "lab/nobody", "lab/new"], {"lab/a": 1, "lab/new": 9}, 3)
    assert got.mask.tolist() == [False, True, False]
    assert got.unknown == 2


@given(st.binary(max_size=200), st.sampled_from(["roaring", "bits"]))
def test_junk_is_refused_or_decoded(data: bytes, form: str) -> None:
    wire = msgspec.convert({"format": form, "data": data}, PackedSet)
    try:
        mask = unpack(wire, {}, 100)
    except ValueError:
        return
    assert mask.shape == (100,)


@given(st.sets(st.integers(0, 70_000), min_size=1, max_size=50), st.data())
def test_damaged_bitmaps_are_refused_or_decoded(ids: set[int], data: st.DataObject) -> None:
    mask = np.zeros(70_001, dtype=np.bool_)
    mask[list(ids)] = True
    packed = pack(mask)
    raw = bytearray(packed.data)
    for _ in range(3):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = unpack(PackedSet(format=packed.format, data=bytes(raw)), {}, 70_001)
    except ValueError:
        return
    assert got.shape == mask.shape


def test_a_run_of_four_billion_ids_is_cut() -> None:
    import pyroaring

    bitmap = pyroaring.BitMap()
    bitmap.add_range(0, 1 << 32)
    bitmap.run_optimize()
    data = bytes(bitmap.serialize())
    try:
        got = decode_set(PackedSet(format="roaring", data=data), {}, 10)
    except ValueError:
        return  # too long for ten clusters
    assert got.mask.all()


def test_oversized_sets_are_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        unpack(PackedSet(format="bits", data=b"\xff" * 100_000), {}, 10)


@given(st.lists(st.sampled_from([0.0, 1 / 3, 0.25, 0.9, 1.0]), max_size=60))
def test_levels_survive_encoding(values: list[float]) -> None:
    scores = np.array(values, dtype=np.float64)
    levels = [Level(value=value, clusters=pack(scores == value)) for value in set(values) - {0.0}]
    assert np.array_equal(unpack_levels(levels, {}, scores.size), scores)


def test_too_many_values_round_down_to_fifteenths() -> None:
    met = np.arange(101)
    scores, back = met / 100, np.zeros(101)
    levels = levels_of(met, 100)
    assert len(levels) <= LEVELS
    for value, clusters in levels:
        back[clusters] = value
    assert np.all(back <= scores + 1e-9)
    assert np.all(scores - back < 1 / 15 + 1e-9)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), float("inf")])
def test_scores_outside_0_to_1_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        unpack_levels([Level(value=value, clusters=[])], {}, 3)
