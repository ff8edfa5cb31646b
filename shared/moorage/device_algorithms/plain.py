"""Scores nodes by what is free on them, without regard to what else is asked."""

from __future__ import annotations

import numpy as np

from .algorithms import Scorer
from .columns import WHOLE, DeviceColumns, DeviceRequest, Floats, Ints, Options
from .mix import RequestMix


def first_fit(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Scores all alike: the first node and device win."""
    return lambda options, request: np.zeros(len(options.rows))


def best_fit(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers the node on which the least stays free, of devices and beside them, then the fullest device."""
    most = np.maximum(columns.beside_size.max(axis=0, initial=1), 1)
    most_devices = max(int(columns.size.sum(axis=1).max(initial=0)), 1)

    def scores(options: Options, request: DeviceRequest) -> Floats:
        devices, beside = _stays(columns, options, request)
        stays: Floats = devices / most_devices + (beside / most).sum(axis=1)
        return -stays - _FINE * _levels(columns, options)

    return scores


def most_allocated(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers the node of which the largest part is taken, then the fullest device."""
    return lambda options, request: _taken(columns, options, request) - _FINE * _levels(columns, options)


def spread(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers the node of which the smallest part is taken, then the emptiest device."""
    return lambda options, request: -_taken(columns, options, request) + _FINE * _levels(columns, options)


def aligned(columns: DeviceColumns, mix: RequestMix) -> Scorer:
    """Prefers the fewest NUMA zones, then the fewest PCIe roots, then the best fit."""
    fit = best_fit(columns, mix)

    def scores(options: Options, request: DeviceRequest) -> Floats:
        zones, roots = _spanned(columns.zones, options), _spanned(columns.roots, options)
        width = columns.free.shape[1] + 1
        apart: Floats = (zones * width + roots) * _COARSE
        return fit(options, request) - apart

    return scores


_FINE = 1e-9  # less than any difference between nodes
_COARSE = 1e3  # more than any difference by fit


def _stays(columns: DeviceColumns, options: Options, request: DeviceRequest) -> tuple[Ints, Ints]:
    """Returns what would be free on the nodes of the options: of devices, and of each other resource."""
    beside = columns.beside_free[options.rows]
    if request.beside:
        beside = beside - np.array(request.beside, np.int64)
    return columns.free[options.rows].sum(axis=1) - request.amount, beside


def _taken(columns: DeviceColumns, options: Options, request: DeviceRequest) -> Floats:
    """Returns the part that is taken, as the mean over devices and other resources."""
    devices, beside = _stays(columns, options, request)
    size = np.column_stack([columns.size[options.rows].sum(axis=1), columns.beside_size[options.rows]])
    left = np.column_stack([devices, beside])
    there = size > 0
    part = np.where(there, 1 - left / np.maximum(size, 1), 0)
    mean: Floats = part.sum(axis=1) / np.maximum(there.sum(axis=1), 1)
    return mean


def _levels(columns: DeviceColumns, options: Options) -> Floats:
    """Returns what is free of the devices taken."""
    levels: Floats = columns.free[options.rows[:, None], options.devices].sum(axis=1) / WHOLE
    return levels


def _spanned(groups: Ints | None, options: Options) -> Ints:
    """Returns to how many groups the devices of each option belong."""
    if groups is None or not options.devices.shape[1]:
        return np.zeros(len(options.rows), np.int64)
    of_devices = np.sort(groups[options.rows[:, None], options.devices], axis=1)
    changes: Ints = (np.diff(of_devices, axis=1) != 0).sum(axis=1)
    return changes + 1
