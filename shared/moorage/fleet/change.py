"""The effect of a change of the fleet on its clusters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: No clusters.
NONE: NDArray[np.int32] = np.empty(0, np.int32)


class FleetChange(NamedTuple):
    """The effect of one patch.

    `node_sets` are clusters whose nodes or row numbers changed, so that claims there must be taken again for the nodes that
    left and joined. `part_sets` are clusters whose parts or their row numbers changed: nothing is claimed of them any more, so
    that claims there must be taken again. `reset`: everything was replaced, and nothing is claimed.
    """

    clusters: NDArray[np.int32] = NONE
    node_sets: NDArray[np.int32] = NONE
    claims: frozenset[str] = frozenset()
    reset: bool = False
    refreshed: NDArray[np.int32] = NONE  # clusters with a newer `as_of`
    part_sets: NDArray[np.int32] = NONE
