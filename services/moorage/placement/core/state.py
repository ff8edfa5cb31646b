"""Keeps providers, names, consumers and what they use, and the columns that candidates are found with."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice

import msgspec
import os_resource_classes
import os_traits

from moorage.parts import Forest, Part

from .errors import conflict, not_found, unknown_class, unknown_traits
from .records import Addition, Change, Consumer, ConsumerWrite, Provider, column
from .reported import ReportedTrees
from .reported_names import is_reported, uuids_of
from .summaries import Summaries

#: Records, trees or consumers of a large change that are written between two steps.
_SLICE = 100
#: Providers that are moved one by one; with more, their trees are written anew, in about the same time.
_FEW = 16


class State:
    """Everything that the interface shows. `apply` is the only way in which it changes."""

    def __init__(self) -> None:
        self.providers: dict[str, Provider] = {}
        self.consumers: dict[str, Consumer] = {}
        self.classes: dict[str, float] = dict.fromkeys(os_resource_classes.STANDARDS, 0.0)
        self.traits: dict[str, float] = dict.fromkeys(os_traits.get_traits(), 0.0)
        self.forest = Forest()
        self.reported = ReportedTrees(self.forest)
        self.additions: dict[str, Addition] = {}  # by node or part
        self._named: dict[str, str] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._consumers_of: dict[str, dict[str, None]] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._writes: dict[str, int] = {}  # allocation writes that named a provider
        self._may_be_gone: set[str] = set()  # providers that were deleted after such writes, among others
        self._blocks: dict[str, int] = {}  # by root
        self._next_block = 0
        self.summaries = Summaries(self)
        self._known_names = 0, 0  # of classes and traits that nodes and parts have
        self._class_users: dict[str, int] = {}
        self._trait_users: dict[str, int] = {}

    # -- reading --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Shows nodes and parts of clusters as they are now."""
        self.reported.sync()
        columns = self.reported.columns
        if self._known_names != (known := (len(columns.class_names), len(columns.trait_names))):
            self._known_names = known
            for names, here in ((columns.class_names, self.classes), (columns.trait_names, self.traits)):
                here.update(dict.fromkeys(sorted(names - here.keys()), 0.0))

    def find(self, uuid: str) -> Provider | None:
        """Returns a provider: one that was made, or a node or part of a cluster. One of these that is gone is shown, without
        inventories, as long as something names it."""
        made = self.providers.get(uuid)
        if made is not None or not is_reported(uuid):
            return made
        addition = self.additions.get(uuid)
        if self.reported.has(uuid):
            return self.reported.record(uuid, addition)
        name = self._name_of_gone(uuid)
        if name is None:
            return None
        generation = 0 if addition is None else addition.generation
        root = self._root_of_gone(name)
        return Provider(uuid=uuid, name=name, parent=root if root in self.forest.rows else None, generation=generation)

    def provider(self, uuid: str) -> Provider:
        found = self.find(uuid)
        if found is None:
            raise not_found(f"No resource provider with uuid {uuid} found")
        return found

    def made(self, uuid: str) -> Provider:
        """Returns a provider that clients may change. Raises a refusal for a node or part: it is its cluster's."""
        found = self.provider(uuid)
        if uuid not in self.providers:
            raise conflict(f"Resource provider {found.name} is reported by its cluster, which alone changes it.")
        return found

    def has(self, uuid: str) -> bool:
        return uuid in self.providers or self.reported.has(uuid) or self.find(uuid) is not None

    def held_of_gone(self, consumer: str, uuid: str) -> Mapping[str, int]:
        """Returns what a consumer holds of a node or part that is gone: it may keep that, or a part of it."""
        held = self.consumers.get(consumer)
        if held is None or uuid in self.providers or self.reported.has(uuid):
            return {}
        return held.allocations.get(uuid, {})

    def _name_of_gone(self, uuid: str) -> str | None:
        for consumer in self._consumers_of.get(uuid, ()):
            if uuid in (names := self.consumers[consumer].names):
                return names[uuid]
        return self.reported.claims.gone_name(uuid)

    def _root_of_gone(self, name: str) -> str:
        provider, cluster, ident = name.split("/", 2)
        return uuids_of(f"{provider}/{cluster}")(ident.partition("/")[0])

    def brief(self, uuid: str) -> Provider:
        """Returns a provider without inventories."""
        if self.reported.has(uuid):
            return self.reported.record(uuid, self.additions.get(uuid), whole=False)
        return self.provider(uuid)

    def missing(self, root: str | None) -> list[str]:
        """Returns the nodes and parts that are gone, and shown because something names them; of one node or of all."""
        named = (self._consumers_of.keys() | self.reported.claims.named()) - self.forest.rows.keys()
        gone = (p for p in sorted(named) if is_reported(p) and p not in self.providers)
        names = {p: name for p in gone if (name := self._name_of_gone(p)) is not None}
        return [p for p, name in names.items() if root is None or self._root_of_gone(name) == root]

    def named(self, name: str) -> str | None:
        """Returns the uuid of the provider of this name."""
        found = self._named.get(name)
        if found is None and name.count("/") >= 2:
            provider, cluster, ident = name.split("/", 2)
            uuid = uuids_of(f"{provider}/{cluster}")(ident)
            return uuid if self.find(uuid) is not None else None
        return found

    def generation(self, uuid: str) -> int:
        made, addition = self.providers.get(uuid), self.additions.get(uuid)
        own = made.generation if made is not None else addition.generation if addition is not None else 0
        return own + self.writes(uuid)

    def writes(self, uuid: str) -> int:
        """Returns how often allocations named the provider."""
        return self._writes.get(uuid, 0)

    def root_of(self, uuid: str) -> str:
        if uuid in self.providers:
            while (parent := self.providers[uuid].parent) is not None:
                uuid = parent
            return uuid
        if self.reported.has(uuid):
            return self.reported.root(uuid)
        return self.provider(uuid).parent or uuid

    def children(self, uuid: str) -> Iterable[str]:
        return self._children.get(uuid, ())

    def subtree(self, uuid: str) -> Iterator[str]:
        """Yields a provider and all below it, each before its children."""
        waiting = [uuid]
        while waiting:
            found = waiting.pop()
            yield found
            waiting.extend(reversed(list(self.children(found))))

    def used(self, uuid: str, name: str) -> int:
        return self._used.get((uuid, name), 0)

    def usages(self, uuid: str) -> dict[str, int]:
        """Returns what is used of a provider, by class. Of a node or part that is what cannot be taken of it, whoever has it."""
        made = self.providers.get(uuid)
        if made is not None:
            return {name: self.used(uuid, name) for name in made.inventories}
        place = self.reported.place(uuid)
        if place is not None:
            return {name: offer.used for name, offer in self.reported.offers(place).items()}
        found: dict[str, int] = {}
        for consumer in self.consumers_of(uuid):
            for name, amount in consumer.allocations[uuid].items():
                found[name] = found.get(name, 0) + amount
        return found

    def consumers_of(self, uuid: str) -> list[Consumer]:
        """Returns the consumers that hold something of a provider; claims among them, with what they hold of it alone."""
        found = [self.consumers[consumer] for consumer in self._consumers_of.get(uuid, ())]
        return found if uuid in self.providers else found + self.reported.claims_of(uuid)

    def consumer(self, uuid: str) -> Consumer | None:
        """Returns a consumer, or a claim as one."""
        found = self.consumers.get(uuid)
        return self.reported.claims.get(uuid) if found is None else found

    def is_class_used(self, name: str) -> bool:
        return self._class_users.get(name, 0) > 0 or name in self.reported.columns.class_names

    def is_trait_used(self, name: str) -> bool:
        return self._trait_users.get(name, 0) > 0 or name in self.reported.columns.trait_names

    def check_class(self, name: str) -> None:
        if name not in self.classes:
            raise unknown_class(name)

    def check_traits(self, names: Iterable[str]) -> None:
        """Raises UnknownName for the first that does not exist."""
        for name in names:
            if name not in self.traits:
                raise unknown_traits(name)

    # -- changing -------------------------------------------------------------------------------------------------

    def restore(self, consumers: Iterable[Consumer], writes: Mapping[str, int]) -> None:
        """Loads what consumers hold, before any provider is there."""
        self._writes = dict(writes)
        self._may_be_gone = {uuid for uuid in writes if not is_reported(uuid)}
        for consumer in consumers:
            self.consumers[consumer.uuid] = consumer
            self._count(consumer, 1)

    def gone(self) -> list[str]:
        """Returns providers that do not exist any more, and whose writes are counted."""
        if not self._may_be_gone:
            return []
        self._may_be_gone -= self.providers.keys()
        return [uuid for uuid in self._may_be_gone if uuid not in self._consumers_of]

    def forget_writes(self, providers: list[str]) -> None:
        self._may_be_gone.difference_update(providers)
        for uuid in providers:
            self._writes.pop(uuid, None)

    def without_unknown(self) -> tuple[ConsumerWrite, ...]:
        """Returns writes after which no consumer holds anything of a provider that does not exist."""
        found = []
        for uuid in {
            c
            for provider, idents in self._consumers_of.items()
            if provider not in self.providers
            for c in idents
            if provider not in self.consumers[c].names
        }:
            old = self.consumers[uuid]
            left = {p: amounts for p, amounts in old.allocations.items() if p in self.providers or p in old.names}
            new = msgspec.structs.replace(old, allocations=left, generation=old.generation + 1)
            found.append(ConsumerWrite(consumer=new, expected=old.generation))
        return tuple(found)

    def unknown_classes(self) -> dict[str, float | None]:
        """Returns the classes, with a time, that providers offer and that do not exist."""
        found = {name: p.updated for p in self.providers.values() for name in p.inventories}
        return {
            name: updated
            for name, updated in found.items()
            if not self.classes.get(name) and name not in os_resource_classes.STANDARDS
        }

    def apply(self, change: Change) -> None:
        for _ in self.apply_in_steps(change):
            pass

    def apply_in_steps(self, change: Change) -> Generator[None, None, None]:
        """Applies a change. Nothing may look at the state between the steps."""
        for names, known in ((change.classes, self.classes), (change.traits, self.traits)):
            for name, created in names.items():
                if created is None:
                    known.pop(name, None)
                else:
                    known[name] = created
        if change.providers:
            yield from self._write_providers(change.providers)
        for uuid, addition in change.additions.items():
            old = self.additions.pop(uuid, None)
            if addition is not None:
                self.additions[uuid] = addition
            self.reported.put_addition(uuid, old, addition)
        for number, write in enumerate(change.consumers, 1):
            self._write_consumer(write)
            if number % _SLICE == 0:
                yield

    def _write_providers(self, written: dict[str, Provider | None]) -> Generator[None, None, None]:
        other = {uuid: new for uuid, new in written.items() if _has_other_place(self.providers.get(uuid), new)}
        if len(other) == 1 and self._write_alone(*next(iter(other.items()))):
            other = {}
        for number, (uuid, new) in enumerate(written.items(), 1):
            if new is not None and uuid not in other and uuid in self.providers:
                self._write_provider(new)
            if number % _SLICE == 0:
                yield
        if other:
            yield from self._write_trees(other)

    def _write_provider(self, new: Provider) -> None:
        """Writes a provider whose place is as before."""
        old = self.providers[new.uuid]
        self._forget(old)
        self._learn(new)
        if _has_other_columns(old, new):
            self.forest.change(self._part(new))
            self.summaries.forget_tree(self.root_of(new.uuid))

    def _write_alone(self, uuid: str, new: Provider | None) -> bool:
        """Makes, moves or deletes one provider without writing the rest of its tree. Returns whether it did: not if there are many
        below it."""
        old = self.providers.get(uuid)
        below = list(islice(self.subtree(uuid), _FEW + 1))
        if len(below) > _FEW:
            return False
        if old is not None:
            self.summaries.forget_tree(self.root_of(uuid))
            if old.parent is None:
                self.forest.write(self._blocks.pop(uuid), ())
            else:
                for one in reversed(below):
                    self.forest.remove(one)
            self._forget(old)
            self._leave_parent(old)
        if new is None:
            self._drop(uuid)
            return True
        self._learn(new)
        if new.parent is None:
            self._write_tree(uuid)
        else:
            self.forest.add(self._part(new), self._join_parent(new, new.parent))
            for one in below[1:]:
                self.forest.add(self._part(self.providers[one]))
        for one in below:
            self.summaries.forget(one)
        self.summaries.forget_tree(self.root_of(uuid))
        return True

    def _join_parent(self, new: Provider, parent: str) -> str | None:
        """Puts a child among those of a parent, which stand in the order in which they were made. Returns the next one."""
        children = self._children.setdefault(parent, {})
        last = next(reversed(children), None)
        children[new.uuid] = None
        if last is None or _age(self.providers[last]) < _age(new):
            return None
        ordered = sorted(children, key=lambda uuid: _age(self.providers[uuid]))
        self._children[parent] = dict.fromkeys(ordered)
        return ordered[ordered.index(new.uuid) + 1]

    def _drop(self, uuid: str) -> None:
        self.providers.pop(uuid, None)
        self._children.pop(uuid, None)
        if uuid in self._writes:
            self._may_be_gone.add(uuid)

    def _write_trees(self, written: dict[str, Provider | None]) -> Generator[None, None, None]:
        """Writes all trees of providers that come, go or move."""
        roots = {self.root_of(uuid) for uuid in written if uuid in self.providers}
        for number, (uuid, new) in enumerate(written.items(), 1):
            old = self.providers.get(uuid)
            if old is not None:
                self._forget(old)
                self._leave_parent(old)
            if new is None:
                self._drop(uuid)
            else:
                self._learn(new)
                if new.parent is not None:
                    self._children.setdefault(new.parent, {})[uuid] = None
            if number % _SLICE == 0:
                yield
        # Children stand in the order in which they were made, so that candidates come in the same order after a restart.
        for parent in {new.parent for new in written.values() if new is not None and new.parent is not None}:
            children = sorted(self._children[parent], key=lambda uuid: _age(self.providers[uuid]))
            self._children[parent] = dict.fromkeys(children)
        # All blocks are emptied before one is written: parts may have moved from tree to tree.
        for root in roots:
            if root in self._blocks:
                self.forest.write(self._blocks.pop(root), ())
        roots = {root for root in roots if root in self.providers and self.providers[root].parent is None}
        roots |= {self.root_of(uuid) for uuid in written if uuid in self.providers}
        for number, root in enumerate(roots, 1):
            if root in self._blocks:
                self.forest.write(self._blocks[root], ())
            self.summaries.forget_tree(root)
            for uuid in self.subtree(root):
                self.summaries.forget(uuid)
            if number % _SLICE == 0:
                yield
        for number, root in enumerate(sorted(roots), 1):
            self._write_tree(root)
            if number % _SLICE == 0:
                yield

    def _leave_parent(self, old: Provider) -> None:
        if old.parent is not None:
            siblings = self._children[old.parent]
            del siblings[old.uuid]
            if not siblings:
                del self._children[old.parent]

    def _forget(self, old: Provider) -> None:
        del self._named[old.name]
        self.summaries.forget(old.uuid)
        for users, names in ((self._class_users, old.inventories), (self._trait_users, old.traits)):
            for name in names:
                users[name] -= 1
                if not users[name]:
                    del users[name]

    def _learn(self, new: Provider) -> None:
        self.providers[new.uuid] = new
        self._named[new.name] = new.uuid
        for name in new.inventories:
            self._class_users[name] = self._class_users.get(name, 0) + 1
        for name in new.traits:
            self._trait_users[name] = self._trait_users.get(name, 0) + 1

    def _write_tree(self, root: str) -> None:
        block = self._blocks.get(root)
        if block is None:
            block = self._blocks[root] = self._next_block
            self._next_block += 1
        parts = [self._part(self.providers[uuid]) for uuid in self.subtree(root)]
        self.forest.write(block, parts, _order(self.providers[root]))

    def _part(self, provider: Provider) -> Part:
        return Part(
            provider.uuid,
            provider.parent,
            frozenset(provider.traits),
            frozenset(provider.aggregates),
            {name: column(inventory) for name, inventory in provider.inventories.items()},
            {name: self.used(provider.uuid, name) for name in provider.inventories},
        )

    def _write_consumer(self, write: ConsumerWrite) -> None:
        new = write.consumer
        old = self.consumers.get(new.uuid)
        if (old.generation if old is not None else None) != write.expected:
            return
        if old is not None:
            self._count(old, -1)
            del self.consumers[new.uuid]
        if new.allocations:
            self.consumers[new.uuid] = new
            self._count(new, 1)
        for uuid in write.named:
            self._writes[uuid] = self._writes.get(uuid, 0) + 1

    def _count(self, consumer: Consumer, sign: int) -> None:
        for uuid, amounts in consumer.allocations.items():
            holders = self._consumers_of.setdefault(uuid, {})
            if sign > 0:
                holders[consumer.uuid] = None
            else:
                del holders[consumer.uuid]
                if not holders:
                    del self._consumers_of[uuid]
            provider = self.providers.get(uuid)
            for name, amount in amounts.items():
                used = self._used[uuid, name] = self._used.get((uuid, name), 0) + sign * amount
                if not used:
                    del self._used[uuid, name]
                self.summaries.forget(uuid)
                if provider is not None and name in provider.inventories:
                    row = self.forest.rows[uuid]
                    self.forest.set_used(row, name, used)
                    self.summaries.forget_tree(self.forest.ids[self.forest.root[row]])


def _age(provider: Provider) -> tuple[float, str]:
    return provider.created, provider.uuid


def _order(root: Provider) -> int:
    """Returns the place of a made tree among others: they come as their roots were made."""
    return (int(root.created * 1e6) << 10) + (zlib.crc32(root.uuid.encode()) & 1023)


def _has_other_place(old: Provider | None, new: Provider | None) -> bool:
    if old is None or new is None:
        return old is not new
    return old.parent != new.parent


def _has_other_columns(old: Provider, new: Provider) -> bool:
    return (old.inventories, set(old.traits), set(old.aggregates)) != (
        new.inventories,
        set(new.traits),
        set(new.aggregates),
    )
