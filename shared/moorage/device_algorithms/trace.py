"""Replays a trace of tasks on nodes with one algorithm: places them in their order, and drops what does not fit."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .algorithms import DeviceAlgorithm
from .chooser import Choice, Chooser
from .columns import WHOLE, DeviceColumns, DeviceRequest

_LARGEST = 1 << 53
_MOST_DEVICES = 1024


class BadTrace(ValueError):
    """A file is no trace; says where and why."""


class Node(NamedTuple):
    name: str
    beside: tuple[int, int]  # millicores, mebibytes
    devices: int
    kind: str


class Task(NamedTuple):
    name: str
    request: DeviceRequest


class Placement(NamedTuple):
    task: str
    node: str  # empty: dropped
    devices: tuple[int, ...]
    share: int


class Replay(NamedTuple):
    """The requests that were placed, and the seconds that each decision took."""

    placements: list[Placement]
    placed: int
    allocated: float  # the part of all devices, in percent
    seconds: list[float]


def read_nodes(lines: Iterable[str]) -> list[Node]:
    """Reads CSV with the columns sn, cpu_milli, memory_mib, gpu and model. Raises `BadTrace`."""
    nodes = []
    for row in _rows(lines, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        beside = row.number("cpu_milli"), row.number("memory_mib")
        nodes.append(Node(row["sn"], beside, row.number("gpu", _MOST_DEVICES), row["model"]))
    if len({node.name for node in nodes}) < len(nodes):
        raise BadTrace("column sn: two nodes have one name")
    return nodes


def read_tasks(lines: Iterable[str], kinds: Mapping[str, int]) -> list[Task]:
    """Reads CSV with the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli and, if it is there, gpu_spec: models of devices
    with `|` between them, empty for any. Raises `BadTrace`."""
    tasks = []
    for row in _rows(lines, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        count, share = row.number("num_gpu", _MOST_DEVICES), row.number("gpu_milli", WHOLE)
        if count and not share:
            raise BadTrace(f"line {row.line}, column gpu_milli: it must be 1 to {WHOLE} where num_gpu is not 0")
        models = [model for model in row.get("gpu_spec", "").split("|") if model]
        allowed = frozenset(kinds[model] for model in models if model in kinds) if models else None
        beside = row.number("cpu_milli"), row.number("memory_mib")
        tasks.append(Task(row["name"], DeviceRequest(count, share if count else WHOLE, beside, allowed)))
    return tasks


def kinds_of(nodes: Iterable[Node]) -> dict[str, int]:
    """Numbers the kinds of devices."""
    kinds: dict[str, int] = {}
    for node in nodes:
        kinds.setdefault(node.kind, len(kinds))
    return kinds


def columns_of(nodes: Sequence[Node]) -> DeviceColumns:
    kinds = kinds_of(nodes)
    width = max((node.devices for node in nodes), default=0)
    counts = np.array([node.devices for node in nodes], np.int64).reshape(-1, 1)
    size = np.where(np.arange(width) < counts, WHOLE, 0).astype(np.int64)
    beside = np.array([node.beside for node in nodes], np.int64).reshape(-1, 2)
    numbers = np.array([kinds[node.kind] for node in nodes], np.int64)
    return DeviceColumns(size, size.copy(), beside, beside.copy(), numbers)


def replay(
    nodes: Sequence[Node],
    tasks: Sequence[Task],
    algorithm: DeviceAlgorithm,
    clock: Callable[[], float] = time.perf_counter,
) -> Replay:
    """Places the tasks one by one. Neither the algorithm nor the mix that it learns from knows those to come."""
    columns = columns_of(nodes)
    chooser = Chooser(columns, algorithm)
    placements, seconds, placed, taken = [], [], 0, 0
    for task in tasks:
        began = clock()
        choice: Choice | None = chooser.choose(task.request)
        if choice is not None:
            chooser.take(choice, task.request)
        chooser.mix.record(task.request)
        seconds.append(clock() - began)
        if choice is None:
            placements.append(Placement(task.name, "", (), 0))
            continue
        placed += 1
        taken += task.request.amount
        placements.append(Placement(task.name, nodes[choice.row].name, choice.devices, task.request.share))
    capacity = int(columns.size.sum())
    return Replay(placements, placed, 100 * taken / capacity if capacity else 0.0, seconds)


class _Row(dict[str, str]):
    """A row of a file, by column."""

    line: int = 0

    def number(self, column: str, most: int = _LARGEST) -> int:
        text = self[column].strip()
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise BadTrace(f"line {self.line}, column {column}: {text[:40]!r} is no whole number from 0 to {most}")
        return int(text)


def _rows(lines: Iterable[str], columns: Sequence[str]) -> Iterator[_Row]:
    reader = csv.DictReader(lines, restval="")
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise BadTrace(f"line 1: the columns {', '.join(missing)} are missing")
        for found in reader:
            row = _Row({name: value for name, value in found.items() if name is not None})
            row.line = reader.line_num
            yield row
    except csv.Error as error:
        raise BadTrace(f"line {reader.line_num}: {error}") from error
