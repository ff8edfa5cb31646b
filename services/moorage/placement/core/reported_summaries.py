"""Makes the summaries of many nodes of a cluster at once: amounts come from columns, and the text of equal traits is made once."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import msgspec
import numpy as np

from moorage.parts import Forest

from .reported_columns import ReportedColumns, block_of

#: Fewer nodes of a cluster are read one by one.
MANY = 32
#: Providers that are shown between two steps.
_SLICE = 2000


def summaries_of_nodes(
    columns: ReportedColumns, forest: Forest, cid: int, roots: Sequence[int]
) -> Generator[None, None, list[str] | None]:
    """Returns the members of a JSON object for each tree of a cluster, by the rows of their roots; None if its nodes changed
    since they were written."""
    shown = columns.shown(cid)
    first = forest.first_row(block_of(cid))
    if shown is None or first is None:
        return None
    yield
    length = len(columns.clusters[cid].ids)
    wanted = np.zeros(length, np.bool_)
    for root in roots:
        wanted[root - first : int(forest.leave[root]) - first] = True
    resources: list[list[str]] = [[] for _ in range(length)]
    for resource, rows, capacity, used in shown:
        here = wanted[rows]
        amounts = zip(rows[here].tolist(), capacity[here].tolist(), used[here].tolist(), strict=True)
        for number, (row, has, takes) in enumerate(amounts):
            resources[row].append(f'"{resource}":{{"capacity":{has},"used":{takes}}}')
            if number % _SLICE == _SLICE - 1:
                yield
    traits: dict[int, str] = {}
    texts: list[str] = []
    made = 0
    for root in roots:
        end = int(forest.leave[root])
        ids, parents = forest.ids[root:end], forest.parent[root:end].tolist()
        of_tree = []
        for at, (uuid, parent, number) in enumerate(
            zip(ids, parents, forest.trait_set[root:end].tolist(), strict=True)
        ):
            has = traits.get(number)
            if has is None:
                has = traits[number] = msgspec.json.encode(sorted(forest.traits.sets[number])).decode()
            above = f'"{forest.ids[parent]}"' if parent >= 0 else "null"
            offers = ",".join(resources[root - first + at])
            of_tree.append(
                f'"{uuid}":{{"resources":{{{offers}}},"traits":{has},'
                f'"parent_provider_uuid":{above},"root_provider_uuid":"{ids[0]}"}}'
            )
        texts.append(",".join(of_tree))
        if (made := made + end - root) >= _SLICE:
            made = 0
            yield
    return texts
