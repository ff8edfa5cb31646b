"""Learns which requests are typical, from past ones only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from .columns import DeviceRequest, Floats

#: Requests that are remembered, and the number of requests after which the mix is learned again.
REMEMBERED = 3000
RENEWED_EVERY = 50
#: Typical requests at most. Rarer ones are left out.
TYPICAL = 128


class RequestMix:
    """The most frequent of the last requests with their shares. `version` changes when they are learned again."""

    def __init__(self) -> None:
        self.version = 0
        self.requests: list[DeviceRequest] = []
        self.weights: Floats = np.zeros(0)
        self.derived: dict[object, object] = {}  # what algorithms keep of it until it is learned again
        self._past: deque[DeviceRequest] = deque()
        self._counts: Counter[DeviceRequest] = Counter()
        self._renewals = _renewals()
        self._until = next(self._renewals)

    def record(self, request: DeviceRequest) -> None:
        """Remembers a request, whether it could be met or not."""
        self._past.append(request)
        self._counts[request] += 1
        if len(self._past) > REMEMBERED:
            oldest = self._past.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._until -= 1
        if self._until <= 0:
            self._until = next(self._renewals)
            self._renew()

    def _renew(self) -> None:
        typical = sorted(
            ((count, request) for request, count in self._counts.items() if request.devices),
            key=lambda found: (-found[0], found[1][:3]),
        )[:TYPICAL]
        self.version += 1
        self.derived.clear()
        self.requests = [request for _, request in typical]
        self.weights = np.array([count for count, _ in typical], np.float64)
        self.weights /= max(self.weights.sum(), 1.0)


def _renewals() -> Iterator[int]:
    """Yields the requests between two renewals: few at first, so that an empty mix is soon replaced."""
    between = 1
    while between < RENEWED_EVERY:
        yield between
        between *= 2
    while True:
        yield RENEWED_EVERY
