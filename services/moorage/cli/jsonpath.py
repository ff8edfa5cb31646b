"""Evaluates JSONPath templates as kubectl does: `{.items[*].metadata.name}`, `{range .items[*]}{.id}{"\\n"}{end}`, keys with
escaped dots (`.labels.nvidia\\.com/gpu`), indexes, slices, unions, `..name` and filters (`[?(@.free.cpu=="4")]`).

Missing fields yield nothing, as in `kubectl get`. Anything else that is not understood is an error with its position."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


class JsonPathError(ValueError):
    pass


@dataclass(frozen=True)
class _Key:
    name: str

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        if isinstance(value, dict) and self.name in value:
            yield value[self.name]


@dataclass(frozen=True)
class _Quoted:
    """A key in brackets and quotes. With kubectl it may be a path of several keys as well: `['metadata.name']`."""

    name: str
    path: tuple[Any, ...]

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        if isinstance(value, dict) and self.name in value:
            yield value[self.name]
        else:
            yield from _walk(self.path, [value], root)


@dataclass(frozen=True)
class _Slice:
    start: int | None
    stop: int | None
    step: int | None

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[self.start : self.stop : self.step]


@dataclass(frozen=True)
class _Index:
    number: int

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= self.number < len(value):
            yield value[self.number]


class _All:
    def of(self, value: Any, root: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list):
            yield from value


@dataclass(frozen=True)
class _Deep:
    """`..name`: the fields of this name at any depth."""

    inner: Any

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        yield from self.inner.of(value, root)
        for child in _All().of(value, root):
            yield from self.of(child, root)


@dataclass(frozen=True)
class _Union:
    members: tuple[Any, ...]

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        for member in self.members:
            yield from member.of(value, root)


@dataclass(frozen=True)
class _Filter:
    left: Any
    operator: str
    right: Any

    def of(self, value: Any, root: Any) -> Iterator[Any]:
        for item in value if isinstance(value, list) else ():
            left = self.left.values(item, root)
            if left and (not self.operator or _holds(left[0], self.operator, self.right.values(item, root))):
                yield item


@dataclass(frozen=True)
class _Literal:
    value: Any

    def values(self, current: Any, root: Any) -> list[Any]:
        return [self.value]


@dataclass(frozen=True)
class Path:
    """A path without braces, from the current value or (`$`) from the root."""

    steps: tuple[Any, ...]
    absolute: bool = False

    def values(self, current: Any, root: Any = None) -> list[Any]:
        return list(_walk(self.steps, [root if self.absolute else current], root))


def _walk(steps: Sequence[Any], values: Sequence[Any], root: Any) -> list[Any]:
    found = list(values)
    for step in steps:
        found = [result for value in found for result in step.of(value, root)]
    return found


def _holds(left: Any, operator: str, right: Sequence[Any]) -> bool:
    if not right:
        return False
    if operator in ("==", "!="):
        return bool((left == right[0]) == (operator == "=="))
    try:
        return bool(
            {"<": left < right[0], "<=": left <= right[0], ">": left > right[0], ">=": left >= right[0]}[operator]
        )
    except TypeError:
        return False


# --- templates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Range:
    path: Path
    body: tuple[Any, ...]


Node = str | Path | _Range


@dataclass(frozen=True)
class Template:
    nodes: tuple[Any, ...]

    def render(self, value: Any) -> str:
        return "".join(_render(self.nodes, value, value))


def _render(nodes: Sequence[Node], current: Any, root: Any) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, _Range):
            for value in node.path.values(current, root):
                yield from _render(node.body, value, root)
        else:
            yield " ".join(text_of(value) for value in node.values(current, root))


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def parse_template(text: str) -> Template:
    """Parses the argument of `-o jsonpath=`. A single path may stand without braces."""
    if "{" not in text and text[:1] in (".", "$", "["):
        return Template((parse_path(text),))
    scanner = _Scanner(text)
    nodes = scanner.nodes(in_range=False)
    return Template(nodes)


def parse_path(text: str) -> Path:
    """Parses a path as `--sort-by` and `custom-columns` take it: with or without braces and the first dot."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    if text and text[0] not in ".$@[":
        text = "." + text
    scanner = _Scanner(text)
    path = scanner.path()
    if scanner.at < len(text):
        raise scanner.error(f"unexpected {text[scanner.at]!r}")
    return path


_NAME = re.compile(r"(?:\\.|[^\s.,\[\]{}()$@=!<>|&'\"*?])+")
_QUOTED = re.compile(r"'((?:\\.|[^'\\])*)'|\"((?:\\.|[^\"\\])*)\"")
_NUMBER = re.compile(r"-?\d+")
_LITERAL = re.compile(r"-?\d+(?:\.\d+)?|true\b|false\b|null\b")
_OPERATOR = re.compile(r"==|!=|<=|>=|<|>")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text)


class _Scanner:
    """Reads a template from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def error(self, message: str) -> JsonPathError:
        return JsonPathError(f"{message} at character {self.at + 1} of {self.text!r}")

    def _skip(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1

    def _take(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise self.error(f"{token!r} is missing")

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def nodes(self, *, in_range: bool) -> tuple[Node, ...]:
        found: list[Node] = []
        while self.at < len(self.text):
            begin = self.text.find("{", self.at)
            begin = len(self.text) if begin < 0 else begin
            if begin > self.at:
                found.append(self.text[self.at : begin])
            self.at = begin
            if not self._take("{"):
                break
            self._skip()
            if self._word("end"):
                if not in_range:
                    raise self.error("{end} without {range}")
                self._expect("}")
                return tuple(found)
            if self._word("range"):
                found.append(self._range())
                continue
            while not self._closed():
                found.append(self._action())
        if in_range:
            raise self.error("{end} is missing")
        return tuple(found)

    def _word(self, word: str) -> bool:
        """Takes a word that is followed by a space or the end of the braces."""
        found = re.compile(rf"{word}(?=[\s}}])\s*").match(self.text, self.at)
        self.at = self.at if found is None else found.end()
        return found is not None

    def _range(self) -> _Range:
        path = self.path()
        self._skip()
        self._expect("}")
        return _Range(path, self.nodes(in_range=True))

    def _closed(self) -> bool:
        self._skip()
        if self.at >= len(self.text):
            raise self.error("'}' is missing")
        return self._take("}")

    def _action(self) -> Node:
        if quoted := self._match(_QUOTED):
            return _unescaped(quoted[1] if quoted[1] is not None else quoted[2])
        before = self.at
        path = self.path()
        if self.at == before:
            raise self.error("a path, a quoted text, range or end is expected, for example {.id},")
        return path

    def path(self) -> Path:
        absolute = self._take("$")
        if not absolute:
            self._take("@")
        steps: list[Any] = []
        while (step := self._step()) is not None:
            steps.append(step)
        return Path(tuple(steps), absolute)

    def _step(self) -> Any:
        if self._take(".."):
            return _Deep(self._bracket() if self._take("[") else self._field())
        if self._take("."):
            if self.at >= len(self.text) or self.text[self.at] in " \t}":
                return _Union((_Self(),))
            return self._bracket() if self._take("[") else self._field()
        return self._bracket() if self._take("[") else None

    def _field(self) -> Any:
        if self._take("*"):
            return _All()
        name = self._match(_NAME)
        if name is None:
            raise self.error("the name of a field is expected")
        if self.text[self.at : self.at + 1] == "(":
            raise self.error(f"functions such as {name[0]}() are not supported")
        return _Key(re.sub(r"\\(.)", r"\1", name[0]))

    def _bracket(self) -> Any:
        self._skip()
        if self._take("?"):
            return self._filter()
        members = [self._member()]
        while self._take(","):
            members.append(self._member())
        self._expect("]")
        return members[0] if len(members) == 1 else _Union(tuple(members))

    def _member(self) -> Any:
        self._skip()
        try:
            if self._take("*"):
                return _All()
            if quoted := self._match(_QUOTED):
                name = quoted[1] if quoted[1] is not None else quoted[2]
                return _Quoted(re.sub(r"\\(.)", r"\1", name), parse_path(name).steps)
            return self._index()
        finally:
            self._skip()

    def _index(self) -> Any:
        numbers = [self._number()]
        while len(numbers) < 3 and self._take(":"):
            numbers.append(self._number())
        if len(numbers) == 1:
            if numbers[0] is None:
                raise self.error("a number, a quoted key, * or ?(…) is expected")
            return _Index(numbers[0])
        if len(numbers) == 3 and numbers[2] == 0:
            raise self.error("a slice's step must not be 0")
        return _Slice(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None)

    def _number(self) -> int | None:
        found = self._match(_NUMBER)
        return None if found is None else int(found[0])

    def _filter(self) -> Any:
        self._expect("(")
        left = self._operand()
        self._skip()
        operator = self._match(_OPERATOR)
        right: Any = None
        if operator is not None:
            right = self._operand()
            self._skip()
        if self.text.startswith(("&&", "||"), self.at):
            raise self.error("&& and || are not supported")
        self._expect(")")
        self._skip()
        self._expect("]")
        return _Filter(left, operator[0] if operator is not None else "", right)

    def _operand(self) -> Any:
        self._skip()
        if quoted := self._match(_QUOTED):
            return _Literal(_unescaped(quoted[1] if quoted[1] is not None else quoted[2]))
        if literal := self._match(_LITERAL):
            return _Literal(json.loads(literal[0]))
        if self.text[self.at : self.at + 1] in ("@", "$", "."):
            return self.path()
        raise self.error("a value or a path such as @.name is expected")


class _Self:
    def of(self, value: Any, root: Any) -> Iterator[Any]:
        yield value
