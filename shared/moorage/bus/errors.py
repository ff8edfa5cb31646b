"""What can go wrong on the bus, as types a caller can tell apart."""

from __future__ import annotations


class NoAnswer(Exception):
    """Nobody answered in time. For a write this means *unknown*: look before doing it again."""


class Conflict(Exception):
    """Somebody else wrote first: the expected sequence or revision is not the last one."""


class BusError(Exception):
    """The server refused what was asked for, for a reason other than a conflict."""
