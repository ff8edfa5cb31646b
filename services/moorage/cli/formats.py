"""The formats of `-o` that take an argument, as in kubectl: `jsonpath=TEMPLATE` and `custom-columns=NAME:.path,…`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .exit_codes import USAGE, Failure

if TYPE_CHECKING:
    from .jsonpath import Path

FORMATS = ("table", "wide", "json", "yaml", "name")
#: Of one resource class: the DeviceClass that selects the same devices.
DEVICE_CLASS = "deviceclass"
WITH_ARGUMENT = ("jsonpath", "custom-columns")
NONE = "<none>"


def check_format(text: str) -> str:
    """Returns the format, or raises ValueError that says which there are."""
    name, equals, argument = text.partition("=")
    if text in (*FORMATS, DEVICE_CLASS) or (name in WITH_ARGUMENT and equals and argument):
        return text
    if name in WITH_ARGUMENT:
        example = "jsonpath='{.items[*].id}'" if name == "jsonpath" else "custom-columns=NAME:.id,CPU:.free.cpu"
        raise ValueError(f"-o {name} needs an argument, for example -o {example}")
    known = ", ".join((*FORMATS, *(f"{one}=…" for one in WITH_ARGUMENT)))
    raise ValueError(f"-o {text} is not known; known are {known}")


class CustomColumn(NamedTuple):
    title: str
    path: Path

    def text(self, item: Any) -> str:
        from .jsonpath import text_of

        values = self.path.values(item, item)
        return ",".join(NONE if value is None else text_of(value) for value in values) or NONE


def template(output: str) -> Callable[[Any], str] | None:
    """Returns what renders a value with `jsonpath=…`; None for other formats."""
    name, _, argument = output.partition("=")
    if name != "jsonpath":
        return None
    from .jsonpath import JsonPathError, parse_template

    try:
        return parse_template(argument).render
    except JsonPathError as error:
        raise Failure(f"-o jsonpath: {error}", USAGE) from None


def custom_columns(output: str) -> list[CustomColumn] | None:
    """Returns the columns of `custom-columns=…`; None for other formats."""
    name, _, argument = output.partition("=")
    if name != "custom-columns":
        return None
    from .jsonpath import JsonPathError, parse_path

    found = []
    for part in _parts(argument):
        title, colon, path = part.partition(":")
        if not colon or not title.strip() or not path.strip():
            raise Failure(f"-o custom-columns: {part!r} is not TITLE:.path, for example NAME:.id", USAGE)
        try:
            found.append(CustomColumn(title.strip(), parse_path(path)))
        except JsonPathError as error:
            raise Failure(f"-o custom-columns: {error}", USAGE) from None
    return found


def _parts(text: str) -> list[str]:
    """Splits at commas outside of brackets and quotes."""
    return re.findall(r"(?:\[(?:'[^']*'|\"[^\"]*\"|[^\]'\"])*\]|\\.|[^,])+", text)


def sorted_by(items: Iterable[dict[str, Any]], path: str) -> list[dict[str, Any]]:
    """Sorts items by a field, as `kubectl get --sort-by` does: numbers and quantities by amount, text with its numbers by
    amount, items without the field first."""
    from .jsonpath import JsonPathError, parse_path

    found = list(items)
    try:
        field = parse_path(path)
    except JsonPathError as error:
        raise Failure(f"--sort-by: {error}", USAGE) from None
    values = [next(iter(field.values(item, item)), None) for item in found]
    if found and all(value is None for value in values):
        known = ", ".join(dict.fromkeys(f".{name}" for item in found[:50] for name in item))
        raise Failure(f"--sort-by {path}: no item has this field; the fields of an item are {known}", USAGE)
    keys = _keys(values)
    return [found[number] for number in sorted(range(len(found)), key=keys.__getitem__)]


def _keys(values: Sequence[Any]) -> list[Any]:
    from .jsonpath import text_of

    present = [value for value in values if value is not None]
    if all(isinstance(value, bool | int | float) for value in present):
        return [(value is not None, value or 0) for value in values]
    texts = [text_of(value) for value in present]
    try:
        from moorage.parsing import parse_nanos

        amounts = iter([parse_nanos(text) for text in texts])
        return [(value is not None, 0 if value is None else next(amounts)) for value in values]
    except ValueError:
        return [(value is not None, () if value is None else _natural(text_of(value))) for value in values]


def _natural(text: str) -> tuple[Any, ...]:
    """Returns a key that puts edge-2 before edge-10."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.findall(r"\d+|\D+", text))
