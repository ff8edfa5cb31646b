"""Says on which nodes of a cluster parts are lacking for pods that each node is to have."""

from __future__ import annotations

import numpy as np

from moorage.fit import Unassigned, assign
from moorage.sdk import Fleet, Shape

SAMPLES = 5
#: Nodes that are looked at.
_LOOKED_AT = 256


def lacking_nodes(fleet: Fleet, shape: Shape, cid: int) -> str:
    """Returns how many nodes lack parts for a pod, and the names of some; "" where other things are lacking, too."""
    rows = fleet.rows_of(cid)
    found = assign(fleet, rows, [shape])
    if not isinstance(found, Unassigned) or found.code != "PartShort":
        return ""
    names: list[str] = []
    for row in rows[:_LOOKED_AT].tolist():
        alone = assign(fleet, np.array([row], np.intp), [shape])
        if isinstance(alone, Unassigned) and alone.code == "PartShort":
            names.append(fleet.node_name(row))
        if len(names) == SAMPLES:
            break
    some = f", such as {', '.join(names)}" if names else ""  # none of those that are looked at may lack any
    return f": {found.needed - found.best} of {found.needed} nodes of {fleet.names[cid]}{some}"
