"""Amounts of devices: so many whole ones, or a share of one."""

from __future__ import annotations

import re

from moorage.parsing import parse_nanos

THOUSANDTHS = 1000
#: Resources of containers without a domain that are Kubernetes' own.
_OF_KUBERNETES = ("cpu", "memory", "ephemeral-storage", "storage", "pods")
_HUGE_PAGES = "hugepages-"
#: Begins the resources by which containers ask for devices of a DeviceClass.
DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
_CLASS = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?", re.ASCII)


def is_class_resource(name: str) -> bool:
    """Returns whether a resource in a manifest names a resource class: Kubernetes has none of this name, or it is the one by which
    containers ask for devices of a DeviceClass."""
    if name.startswith(DEVICE_CLASS):
        return _CLASS.fullmatch(name[len(DEVICE_CLASS) :]) is not None
    if "/" in name or name in _OF_KUBERNETES or name.startswith(("requests.", "limits.")) or _is_huge_pages(name):
        return False
    return _CLASS.fullmatch(name) is not None


def _is_huge_pages(name: str) -> bool:
    """Returns whether Kubernetes counts pages of a size by this name. It knows none like hugepages-1gig, so that one is a class."""
    try:
        return name.startswith(_HUGE_PAGES) and parse_nanos(name.removeprefix(_HUGE_PAGES)) > 0
    except ValueError:
        return False


def class_of_resource(name: str) -> str:
    """Returns the class that a resource in a manifest names."""
    return name.removeprefix(DEVICE_CLASS)


def count_and_share(amount: int) -> tuple[int, int]:
    """Returns devices, and thousandths of each (0: whole ones), of an amount in thousandths. Raises ValueError for what is neither a
    number of devices nor a share of one."""
    if amount <= 0:
        raise ValueError("must be more than 0")
    if amount < THOUSANDTHS:
        return 1, amount
    if amount % THOUSANDTHS:
        raise ValueError("must be a whole number of devices, or less than 1 for a share of one")
    return amount // THOUSANDTHS, 0
