"""Formats quantities for people; the formats for programs have the exact values."""

from __future__ import annotations

from typing import Any


def readable(resource: str, quantity: Any) -> str:
    """Formats a quantity: `2` or `500m` of CPU, `700Gi` of memory."""
    from moorage.parsing import readable_quantity

    return readable_quantity(resource, str(quantity))


def percent(resource: str, used: str, total: str) -> str:
    """Formats the used part of a total; it may be more than all of it."""
    from moorage.parsing import parse_amount

    amount = parse_amount(resource, total, False)
    return f"{100 * parse_amount(resource, used, False) / amount:.0f}%" if amount else "0%"
