"""Formats tables that fit the terminal: columns shrink and are cut with `…`. Where stdout is no terminal, nothing is cut."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from .terminal import paint

_GAP = "   "
#: Columns do not shrink below this; a terminal that is narrower than that wraps lines.
_NARROWEST = 5
#: Columns by which a column of a stream is wider than the first rows need.
_SPARE = 10
#: They would move the cursor, or change what the terminal shows.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def terminal_width() -> int | None:
    """Returns the columns of the terminal that stdout is, or None."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def width_of(text: str) -> int:
    """Returns the columns that the text takes in a terminal: two for each wide character."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Returns the text, cut with `…` to this many columns."""
    if width_of(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…" if width > 0 else ""


def padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def one_line(value: Any) -> str:
    """Returns a value as text without line breaks and other control characters."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return _CONTROL.sub(" ", text) if not text.isprintable() else text


class Table:
    """A table like kubectl's: three spaces between columns, no lines, `-` for empty cells."""

    def __init__(
        self,
        headers: Sequence[str],
        *,
        heading: bool = True,
        least: Sequence[int] = (),
        names: Sequence[int] = (),
        stream: bool = False,
    ) -> None:
        """`least`: widths to begin with; `names`: columns that shrink last. With `stream`, more rows come later, and all are
        aligned with the first ones."""
        self._headers, self._heading = headers, heading
        self._names, self._stream = names, stream
        self._least = [max(width_of(h) if heading else 0, *least[i : i + 1], 0) for i, h in enumerate(headers)]
        self._widths: list[int] = []

    def lines(self, rows: Iterable[Sequence[Any]]) -> list[str]:
        """Formats rows; the first ones come after the heading."""
        cells = [[one_line(c) if c is not None and c != "" else "-" for c in row] for row in rows]
        available = terminal_width()
        widths = self._widths or self._fitted(cells, available)
        if self._stream:
            self._widths = widths
        lines = [self._line(self._headers, widths, available)] if self._heading else []
        self._heading = False
        return lines + [self._line(row, widths, available) for row in cells]

    def _fitted(self, cells: Sequence[Sequence[str]], available: int | None) -> list[int]:
        widths = self._least
        for row in cells:
            widths = [max(w, width_of(c)) for w, c in zip(widths, row, strict=True)]
        if available is None:
            return widths
        if not self._stream:
            return shrunk(widths, available, self._names)
        # Later rows may be wider: the columns share what is left, and the last one gets the rest.
        spare = available - sum(widths) - len(_GAP) * (len(widths) - 1)
        more = max(0, min(_SPARE, spare // len(widths)))
        widths = shrunk([*(w + more for w in widths[:-1]), widths[-1]], available, self._names)
        return [*widths[:-1], max(widths[-1], available - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1))]

    def _line(self, cells: Sequence[str], widths: Sequence[int], available: int | None) -> str:
        texts = cells if available is None else [cut(c, w) for c, w in zip(cells, widths, strict=True)]
        return _GAP.join(paint(padded(c, w)) for c, w in zip(texts, widths, strict=True)).rstrip()


def shrunk(widths: Sequence[int], available: int, names: Sequence[int] = ()) -> list[int]:
    """Lowers the widest columns until the table fits; those in `names` only once the others are as narrow as they may be."""
    room = available - len(_GAP) * (len(widths) - 1)
    found = list(widths)
    for group in ([i for i in range(len(widths)) if i not in names], list(names)):
        limit = max((widths[i] for i in group), default=0)
        while limit > _NARROWEST and sum(found) > room:
            limit -= 1
            for i in group:
                found[i] = min(found[i], limit)
        # Width that the last step left over goes to columns that were cut.
        for i in group:
            found[i] += min(widths[i] - found[i], max(0, room - sum(found)))
    return found


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, heading: bool = True) -> str:
    return "\n".join(Table(headers, heading=heading).lines(rows))
