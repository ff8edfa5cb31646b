"""From bytes to plain data, for whoever takes documents from outside: JSON, or the part of YAML that JSON has, too. What
may become of a text is bounded before anything is made of it: aliases and merge keys can make a kilobyte into gigabytes,
and what is nested deeply enough ends the process that reads it."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from moorage.model.problems import Problem, Refused

MAX_BYTES = 768 << 10
MAX_DEPTH = 64
MAX_CONTAINERS = 100_000
#: A number of more digits means nothing, and there are ways to write it that take ever longer to read.
MAX_DIGITS = 400

_json = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Dates stay text, as in JSON: nothing in a document is a date."""

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MAX_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        number: int = super().construct_yaml_int(node)
        return number


Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _bad(code: str, detail: str, status: int = 400) -> Refused:
    return Refused(Problem(title="Not readable", status=status, code=code, detail=detail[:500]))


def data_of(text: bytes) -> dict[str, Any]:
    """The one document that `text` holds, as JSON or YAML. Raises Refused, never anything else."""
    documents = documents_of(text)
    if len(documents) != 1:
        detail = f"one message holds one document, this one {len(documents)}; send them one by one"
        raise _bad("SeveralDocuments", detail)
    return object_of(documents[0])


def documents_of(text: bytes, *, yaml_too: bool = True, most: int = MAX_BYTES) -> list[Any]:
    """What `text` holds, at least one thing: JSON, or YAML with one or several."""
    if len(text) > most:
        raise too_large(len(text), most)
    if not text.strip():
        raise _empty()
    try:
        documents = [json_of(text)]
    except Refused as refusal:
        if not yaml_too or refusal.problem.code != "Undecodable":
            raise
        try:
            documents = yaml_of(text, most)
        except Refused as second:
            if second.problem.code == "Undecodable" and text.lstrip()[:1] in (b"{", b"["):
                raise refusal from None  # it was meant to be JSON
            raise
    documents = [one for one in documents if one is not None]
    if not documents:
        raise _empty()
    return documents


def object_of(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise _bad("Undecodable", "a document is an object with apiVersion, kind, metadata and spec")
    return document


def json_of(text: bytes, containers: int = MAX_CONTAINERS) -> Any:
    try:
        data = _json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad("Undecodable", f"this is not JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    bounded(data, containers)
    return data


def yaml_of(text: bytes | str, most: int = MAX_BYTES) -> list[Any]:
    """Every document of a YAML text, as JSON would have it: `most` bytes of it altogether."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        measure(decoded, most)
        # What YAML has and JSON has not (keys that are numbers, sets, NaN) must not reach a store.
        encoded = _encode(list(yaml.load_all(decoded, Loader)))
        if len(encoded) > most:
            raise too_large(len(encoded), most)
        documents: list[Any] = _json.decode(encoded)
    except (yaml.YAMLError, UnicodeError, ValueError, TypeError, OverflowError, msgspec.MsgspecError) as broken:
        raise _bad("Undecodable", f"this is neither JSON nor YAML: {broken}") from None
    except RecursionError:
        raise _too_deep() from None
    return documents


def too_large(found: int, most: int) -> Refused:
    return _bad("TooLarge", f"the document has {found} bytes; at most {most} are taken", 413)


def _too_many(containers: int) -> Refused:
    return _bad("TooLarge", f"the document has more than {containers} objects and lists", 413)


def _too_deep() -> Refused:
    return _bad("TooDeep", f"the document is nested deeper than {MAX_DEPTH}")


def _empty() -> Refused:
    return _bad("Empty", "there is no document; send one as JSON or YAML")


def bounded(data: Any, containers: int) -> None:
    """What was JSON is no larger than its text; it may still be many things, or one in the other."""
    level = [data] if isinstance(data, dict | list) else []
    seen = 0
    for _ in range(MAX_DEPTH):
        seen += len(level)
        if seen > containers:
            raise _too_many(containers)
        below = [
            inside
            for item in level
            for inside in (item.values() if type(item) is dict else item)
            if type(inside) is dict or type(inside) is list
        ]
        if not below:
            return
        level = below
    raise _too_deep()


class _Part:
    """A list or mapping, with every alias in it written out: its height, how many objects and lists it holds, and at least
    how many bytes of JSON it takes."""

    __slots__ = ("anchor", "bytes", "containers", "height")

    def __init__(self, anchor: str | None = None, size: int = 0, containers: int = 0) -> None:
        self.anchor, self.bytes, self.containers, self.height = anchor, size, containers, containers

    def add(self, other: _Part, most: int, containers: int) -> None:
        self.bytes += other.bytes
        self.containers += other.containers
        self.height = max(self.height, other.height + 1)
        if self.bytes > most:
            detail = f"with its aliases written out the document has more than {most} bytes, which are taken at most"
            raise _bad("TooLarge", detail, 413)
        if self.containers > containers:
            raise _too_many(containers)
        if self.height > MAX_DEPTH:
            raise _too_deep()


def measure(text: str, most: int, containers: int = MAX_CONTAINERS) -> None:
    """Goes by what the parser says, of which nothing is kept: raises Refused before the text could become too much."""
    anchors: dict[str, _Part] = {}
    open_parts: list[_Part] = []
    whole = _Part()
    for event in yaml.parse(text, Loader):
        if isinstance(event, yaml.ScalarEvent):
            part = _Part(event.anchor, len(event.value) + 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_parts.append(_Part(event.anchor, 1, 1))
            if len(open_parts) > MAX_DEPTH:
                raise _too_deep()
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            part = open_parts.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == one.anchor for one in open_parts):
                raise _too_deep()  # it holds itself
            part = anchors.get(event.anchor or "", _Part())  # one that is not there is found when it is read
        else:
            if isinstance(event, yaml.DocumentStartEvent):
                anchors.clear()
                whole.containers = 0  # of one document; bytes are those of all
            continue
        if part.anchor:
            anchors[part.anchor] = part
        (open_parts[-1] if open_parts else whole).add(part, most, containers)
