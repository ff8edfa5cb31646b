"""Describes what is asked of the parts of one tree: groups of amounts, and relations between the groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moorage.model.part_requests import AttributeRelation, DeviceAsk, PropertySelector

NAMELESS = ""  # the suffix of the group that may be spread over the parts of a tree
INTERNAL = "="  # begins suffixes that nobody gave; isolated parts may meet these groups, too


class Group(NamedTuple):
    """Amounts and conditions. A group with a suffix is met by one part. The group without a suffix is spread by class.

    `required` and `member_of` are conjunctions of alternatives: one name of each set must be there.
    """

    resources: Mapping[str, int] = {}
    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()
    member_of: tuple[frozenset[str], ...] = ()
    not_member_of: frozenset[str] = frozenset()
    in_tree: str | None = None
    properties: PropertySelector = ()
    devices: tuple[DeviceAsk, ...] = ()  # alternatives; then nothing else is asked for


class SameSubtree(NamedTuple):
    """One of the parts of `together` is the ancestor of all of them; no part of `apart` is on a line with that one."""

    together: frozenset[str]
    apart: frozenset[str] = frozenset()


class RoleZone(NamedTuple):
    """The part of `zone` is the ancestor of those parts of `groups` that plugins of the node's agent give out."""

    zone: str
    groups: frozenset[str]


class Request(NamedTuple):
    groups: Mapping[str, Group]
    same_subtree: tuple[SameSubtree, ...] = ()
    isolated: frozenset[str] = frozenset()  # suffixes whose part meets no other group with a suffix
    root_required: tuple[frozenset[str], ...] = ()
    root_forbidden: frozenset[str] = frozenset()
    root_member_of: tuple[frozenset[str], ...] = ()
    root_not_member_of: frozenset[str] = frozenset()
    attributes: tuple[AttributeRelation, ...] = ()  # of devices
    role_zones: tuple[RoleZone, ...] = ()
    alike: frozenset[int] = frozenset()  # numbers of devices that the pod may get because others of its claim have such
