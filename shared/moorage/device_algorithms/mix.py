"""Learns which requests are typical, from past ones only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from .columns import DeviceRequest, Floats, Ints

#: Requests that are remembered, and the number of requests after which the mix is learned again.
REMEMBERED = 3000
RENEWED_EVERY = 50
#: Typical requests at most.
TYPICAL = 128


class RequestMix:
    """The last requests for devices: all, the most frequent ones, and a sample. `version` changes when they are learned again."""

    def __init__(self) -> None:
        self.version = 0
        self.requests: list[DeviceRequest] = []  # the most frequent ones
        self.weights: Floats = np.zeros(0)  # their shares
        self.sample: list[DeviceRequest] = []
        self.sample_weights: Floats = np.zeros(0)  # the shares of the requests that they stand for
        self.distinct: list[DeviceRequest] = []
        self.counts: Floats = np.zeros(0)  # how often each distinct one was asked
        self.known = 0  # requests for devices that were learned from
        self.derived: dict[object, object] = {}  # what algorithms keep of it until it is learned again
        self._past: deque[DeviceRequest] = deque()
        self._counts: Counter[DeviceRequest] = Counter()
        self._order: dict[DeviceRequest, tuple[object, ...]] = {}  # in which the sample is drawn
        self._renewals = _renewals()
        self._until = next(self._renewals)

    def record(self, request: DeviceRequest) -> None:
        """Remembers a request, whether it could be met or not."""
        self._past.append(request)
        self._counts[request] += 1
        if request not in self._order:
            self._order[request] = (tuple(sorted(request.kinds or ())), *request[:3])
        if len(self._past) > REMEMBERED:
            self._forget(self._past.popleft())
        self._until -= 1
        if self._until <= 0:
            self._until = next(self._renewals)
            self._renew()

    def _forget(self, oldest: DeviceRequest) -> None:
        self._counts[oldest] -= 1
        if not self._counts[oldest]:
            del self._counts[oldest], self._order[oldest]

    def _renew(self) -> None:
        self.version += 1
        self.derived.clear()
        typical = [request for request in self._counts if request.devices]
        typical.sort(key=self._order.__getitem__)
        counts = np.array([self._counts[request] for request in typical], np.float64)
        self.distinct, self.counts = typical, counts
        self.known = int(counts.sum())
        most = np.argsort(-counts, kind="stable")[:TYPICAL]
        self.requests, self.weights = [typical[i] for i in most.tolist()], _shares(counts[most])
        self.sample, self.sample_weights = typical, _shares(counts)
        if len(typical) > TYPICAL:
            at, stand_for = _drawn(counts, np.array([request.amount for request in typical], np.float64))
            self.sample, self.sample_weights = [typical[i] for i in at.tolist()], _shares(stand_for)


def _drawn(counts: Floats, amounts: Floats) -> tuple[Ints, Floats]:
    """Draws requests at equal distances in their order, large ones more often. Returns which, and how many each stands for."""
    often = np.sqrt(amounts)
    until = np.cumsum(counts * often)
    times = np.diff(np.rint(until * (TYPICAL / until[-1])), prepend=0)
    at = np.flatnonzero(times)
    return at, times[at] / often[at]


def _shares(counts: Floats) -> Floats:
    shares: Floats = counts / max(counts.sum(), 1e-9)
    return shares


def _renewals() -> Iterator[int]:
    """Yields the requests between two renewals: few at first, so that an empty mix is soon replaced."""
    between = 1
    while between < RENEWED_EVERY:
        yield between
        between *= 2
    while True:
        yield RENEWED_EVERY
