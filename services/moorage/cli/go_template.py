"""Renders the subset of Go's text templates that files with a values file use: values by name, range, if, with, and
pipelines of a few functions. Anything unknown is an error with its line, never an empty text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from .exit_codes import FAILED, Failure

_TAG = re.compile(r"\{\{(-\s)?(.*?)(\s-)?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`|\(|\)|\||[^\s()|]+')


class _Token(NamedTuple):
    text: str
    action: str | None  # None: plain text
    line: int


class _Scope(NamedTuple):
    dot: Any
    root: Any
    names: dict[str, Any]


def render(text: str, values: dict[str, Any], where: str) -> str:
    tokens = list(_tokens(text))
    rendered, end = _block(tokens, 0, _Scope(values, values, {}), where, True)
    if end != len(tokens):
        raise _failure(where, tokens[end], f"unexpected {tokens[end].action!r}")
    return rendered


def _tokens(text: str) -> Iterator[_Token]:
    at, trim = 0, False
    for match in _TAG.finditer(text):
        plain = text[at : match.start()]
        plain = plain.lstrip() if trim else plain
        plain = plain.rstrip() if match[1] else plain
        line = text.count("\n", 0, match.start()) + 1
        yield _Token(plain, None, line)
        inner = match[2].strip()
        if not inner.startswith("/*"):
            yield _Token("", inner, line)
        at, trim = match.end(), bool(match[3])
    rest = text[at:]
    yield _Token(rest.lstrip() if trim else rest, None, text.count("\n") + 1)


def _failure(where: str, token: _Token, message: str) -> Failure:
    return Failure(f"{where}:{token.line}: {message}", FAILED)


def _block(tokens: list[_Token], at: int, scope: _Scope, where: str, active: bool) -> tuple[str, int]:
    """Renders up to the matching `end` or `else`. Returns the text and the index of that token."""
    out: list[str] = []
    while at < len(tokens):
        token = tokens[at]
        if token.action is None:
            if active:
                out.append(token.text)
            at += 1
            continue
        head, _, rest = token.action.partition(" ")
        if head in ("end", "else"):
            break
        if head in ("if", "with", "range"):
            text, at = _nested(tokens, at, head, rest.strip(), scope, where, active)
            out.append(text)
            continue
        if active:
            assigned = re.fullmatch(r"(\$\w+)\s*:?=\s*(.+)", token.action, re.DOTALL)
            if assigned:
                scope.names[assigned[1]] = _value(assigned[2], scope, where, token)
            else:
                out.append(_to_text(_value(token.action, scope, where, token)))
        at += 1
    return "".join(out), at


def _nested(
    tokens: list[_Token], at: int, head: str, rest: str, scope: _Scope, where: str, active: bool
) -> tuple[str, int]:
    out: list[str] = []
    begin = tokens[at]
    names = dict(scope.names)
    loop: list[str] = []
    if head == "range" and (assigned := re.fullmatch(r"(\$\w+)(?:\s*,\s*(\$\w+))?\s*:=\s*(.+)", rest, re.DOTALL)):
        loop = [n for n in (assigned[1], assigned[2]) if n]
        rest = assigned[3]
    value = _value(rest, scope, where, begin) if active else None
    truth = active and bool(value)
    body = at + 1
    if head == "range" and truth:
        pairs: list[tuple[Any, Any]] = list(value.items()) if isinstance(value, dict) else list(enumerate(value or ()))
        end = body
        for key, item in pairs:
            loop_names = dict(zip(loop, (key, item), strict=False)) if len(loop) == 2 else dict.fromkeys(loop, item)
            text, end = _block(tokens, body, _Scope(item, scope.root, names | loop_names), where, True)
            out.append(text)
    else:
        inner = _Scope(value if head == "with" else scope.dot, scope.root, names)
        text, end = _block(tokens, body, inner, where, truth and head != "range")
        out.append(text)
    while end < len(tokens) and tokens[end].action is not None and str(tokens[end].action).startswith("else"):
        token = tokens[end]
        condition = str(token.action)[4:].strip()
        chosen = active and not truth
        if condition.startswith("if "):
            chosen = chosen and bool(_value(condition[3:], scope, where, token))
        text, end = _block(tokens, end + 1, scope, where, chosen)
        out.append(text)
        truth = truth or chosen
    if end >= len(tokens):
        raise _failure(where, begin, f"{begin.action!r} has no end")
    return "".join(out), end + 1


# --- values ----------------------------------------------------------------------------------------------------------


def _value(text: str, scope: _Scope, where: str, token: _Token) -> Any:
    words = _WORD.findall(text)
    value, rest = _pipeline(words, scope, where, token)
    if rest:
        raise _failure(where, token, f"cannot parse {text!r} from {rest[0]!r} on")
    return value


def _pipeline(words: list[str], scope: _Scope, where: str, token: _Token) -> tuple[Any, list[str]]:
    value, words = _command(words, scope, where, token, ())
    while words and words[0] == "|":
        value, words = _command(words[1:], scope, where, token, (value,))
    return value, words


def _command(
    words: list[str], scope: _Scope, where: str, token: _Token, last: tuple[Any, ...]
) -> tuple[Any, list[str]]:
    if not words:
        raise _failure(where, token, "a value is missing")
    head = words[0]
    if head in _FUNCTIONS:
        words = words[1:]
        arguments: list[Any] = []
        while words and words[0] not in ("|", ")"):
            value, words = _operand(words, scope, where, token)
            arguments.append(value)
        try:
            return _FUNCTIONS[head](*arguments, *last), words
        except (TypeError, ValueError, LookupError) as error:
            raise _failure(where, token, f"{head}: {error}") from error
    if last:
        raise _failure(where, token, f"unknown function {head!r}; known are {', '.join(sorted(_FUNCTIONS))}")
    return _operand(words, scope, where, token)


def _operand(words: list[str], scope: _Scope, where: str, token: _Token) -> tuple[Any, list[str]]:
    word, rest = words[0], words[1:]
    if word == "(":
        value, rest = _pipeline(rest, scope, where, token)
        if not rest or rest[0] != ")":
            raise _failure(where, token, "a parenthesis is not closed")
        return value, rest[1:]
    if word[0] in '"`':
        return (json.loads(word) if word[0] == '"' else word[1:-1]), rest
    if word in ("true", "false", "nil"):
        return {"true": True, "false": False, "nil": None}[word], rest
    if re.fullmatch(r"-?\d+(\.\d+)?", word):
        return (float(word) if "." in word else int(word)), rest
    if word[0] == "$":
        name, *path = word.split(".")
        if name != "$" and name not in scope.names:
            raise _failure(where, token, f"unknown variable {name}")
        return _walk(scope.root if name == "$" else scope.names[name], path, word, where, token), rest
    if word[0] == ".":
        return _walk(scope.dot, [part for part in word.split(".") if part], word, where, token), rest
    raise _failure(where, token, f"unknown function {word!r}; known are {', '.join(sorted(_FUNCTIONS))}")


def _walk(value: Any, path: list[str], word: str, where: str, token: _Token) -> Any:
    # Some templates write .Values.X where others write .X.
    if path[:1] == ["Values"] and isinstance(value, dict) and "Values" not in value:
        path = path[1:]
    for part in path:
        if not isinstance(value, dict) or part not in value:
            raise _failure(where, token, f"no value for {word}")
        value = value[part]
    return value


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value)


def _default(otherwise: Any, value: Any = None) -> Any:
    return value if value else otherwise


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = value[key]
    return value


_FUNCTIONS: dict[str, Any] = {
    "and": lambda *a: next((x for x in a if not x), a[-1]),
    "default": _default,
    "eq": lambda a, *b: any(a == x for x in b),
    "gt": lambda a, b: a > b,
    "index": _index,
    "len": len,
    "lower": str.lower,
    "lt": lambda a, b: a < b,
    "ne": lambda a, b: a != b,
    "not": lambda a: not a,
    "or": lambda *a: next((x for x in a if x), a[-1]),
    "printf": lambda form, *a: re.sub(r"%[vds]", "%s", form) % tuple(_to_text(x) for x in a),
    "quote": lambda a: json.dumps(_to_text(a)),
    "toJson": json.dumps,
    "upper": str.upper,
}
