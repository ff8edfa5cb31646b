"""Shows providers as candidates do, and keeps what was made of those that do not change."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec

from moorage.collections import LruDict

if TYPE_CHECKING:
    from .state import State

#: Encoded summaries of providers and of whole trees that are kept.
PROVIDERS, TREES = 200_000, 40_000


class Summaries:
    """The summaries of a state, which calls `forget` and `forget_tree` for what it changes."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._of_provider = LruDict[str, str](PROVIDERS)
        self._of_tree = LruDict[str, str](TREES)  # by root
        self._making: dict[str, object] = {}  # by root: the latest that is made in steps

    def forget(self, uuid: str) -> None:
        """Forgets the summary of a provider. Its tree's is forgotten by `forget_tree`."""
        self._of_provider.pop(uuid, None)

    def forget_tree(self, root: str) -> None:
        self._of_tree.pop(root, None)
        self._making.pop(root, None)

    def of(self, uuid: str, only: set[str] | None = None, traits: bool = True) -> dict[str, Any]:
        """Shows a provider. `only`: the classes to show, None for all."""
        state = self._state
        made = state.providers.get(uuid)
        if made is None:
            return self._of_reported(uuid, only, traits)
        shown: dict[str, Any] = {
            "resources": {
                name: {"capacity": inventory.capacity, "used": state.used(uuid, name)}
                for name, inventory in made.inventories.items()
                if only is None or name in only
            }
        }
        if traits:
            shown["traits"] = made.traits
        return shown

    def _of_reported(self, uuid: str, only: set[str] | None, traits: bool) -> dict[str, Any]:
        reported, forest = self._state.reported, self._state.forest
        place = reported.place(uuid)
        offers = {} if place is None else reported.offers(place)
        shown: dict[str, Any] = {
            "resources": {
                name: {"capacity": offer.inventory.capacity, "used": offer.used}
                for name, offer in offers.items()
                if only is None or name in only
            }
        }
        if traits:
            shown["traits"] = sorted(forest.traits.sets[int(forest.trait_set[forest.rows[uuid]])])
        return shown

    def kept(self, root: int) -> str | None:
        """Returns the summaries of a tree, by its first row, if they were made since it changed."""
        return self._of_tree.use(self._state.forest.ids[root])

    def of_tree(self, root: int, at_once: int) -> Generator[None, None, str]:
        """Returns the members of a JSON object: the summaries of a tree's providers with parent and root. They are kept, for
        answers show whole trees again and again. Makes so many between two steps."""
        forest = self._state.forest
        uuids = forest.ids[root : int(forest.leave[root])]
        own = self._making[uuids[0]] = object()
        texts: list[str] = []
        for begin in range(0, len(uuids), at_once):
            if begin:
                yield
            texts += [f'"{uuid}":{self._encoded(uuid, uuids[0])}' for uuid in uuids[begin : begin + at_once]]
        found = ",".join(texts)
        if self._making.get(uuids[0]) is own:  # what is used of it may have changed between the steps
            del self._making[uuids[0]]
            if uuids[0] in self._state.providers:  # use of nodes changes with every report
                self._of_tree[uuids[0]] = found
        return found

    def _encoded(self, uuid: str, root: str) -> str:
        state = self._state
        made = state.providers.get(uuid)
        found = self._of_provider.get(uuid) if made is not None else None
        if found is None:
            shown = self.of(uuid)
            shown["parent_provider_uuid"] = made.parent if made is not None else self._parent_of_reported(uuid)
            shown["root_provider_uuid"] = root
            found = msgspec.json.encode(shown).decode()
            if made is not None:
                self._of_provider[uuid] = found
        return found

    def _parent_of_reported(self, uuid: str) -> str | None:
        forest = self._state.forest
        parent = int(forest.parent[forest.rows[uuid]])
        return forest.ids[parent] if parent >= 0 else None
