"""Errors of the bus that a caller can tell apart."""

from __future__ import annotations


class NoAnswer(Exception):
    """No answer came in time. Whether a write happened is unknown: read before writing again."""


class Conflict(Exception):
    """Another writer came first: the expected sequence or revision is not the last one."""


class BusError(Exception):
    """The broker refused a request for a reason other than a conflict."""
