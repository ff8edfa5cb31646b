"""Events of the Placement interface: which provider changed and how, or what a consumer holds now."""

from __future__ import annotations

from .base import Value


class ProviderChange(Value, kw_only=True, frozen=True):
    """A provider that was created, changed or deleted. `changed` names what a change changed: `name`, `parent`, `inventories`,
    `traits`, `aggregates`."""

    provider: str
    name: str
    parent: str = ""
    generation: int = 0
    changed: tuple[str, ...] = ()


class AllocationChange(Value, kw_only=True, frozen=True):
    """The holdings of a consumer after its allocations were created, changed or deleted: amounts by provider and class."""

    consumer: str
    project: str
    user: str
    type: str = ""
    generation: int = 0
    allocations: dict[str, dict[str, int]] = {}


class NameChange(Value, kw_only=True, frozen=True):
    """A custom name that was created or deleted: of a resource class or a trait (`kind` class, trait)."""

    name: str
    kind: str


class RecordedChange(Value, kw_only=True, frozen=True):
    """The event of a provider's or a custom name's record: stored with the record, and published after it. `time` is when it was
    stored. It has one of `data` and `name`."""

    id: str
    change: str
    cause: str = ""
    time: str = ""
    data: ProviderChange | None = None
    name: NameChange | None = None

    @property
    def key(self) -> str:
        """Returns whose event this is: a provider's uuid, or KIND.NAME of a custom name."""
        if self.data is not None:
            return self.data.provider
        return "" if self.name is None else f"{self.name.kind}.{self.name.name}"
