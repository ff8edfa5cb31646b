"""Parses documents from outside into plain data: JSON, or the subset of YAML that JSON can express.

The size of the result is bounded before it is built: aliases and merge keys can turn a kilobyte into gigabytes, and data
that is nested deeply enough crashes the process.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from moorage.model.problems import Problem, Refused

MAX_BYTES = 768 << 10
MAX_DEPTH = 64
MAX_CONTAINERS = 100_000
#: Numbers with more digits are refused: no field needs them, and parsing takes quadratic time.
MAX_DIGITS = 400

_json = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that leaves dates as text, as JSON does, and bounds numbers."""

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


def _refusal(code: str, detail: str, status: int = 400) -> Refused:
    return Refused(Problem(title="Not readable", status=status, code=code, detail=detail[:500]))


def parse_document(text: bytes) -> dict[str, Any]:
    """Parses the only document of `text`, JSON or YAML. Raises Refused and no other exception."""
    documents = parse_documents(text)
    if len(documents) != 1:
        detail = f"a message holds one document, but this one has {len(documents)}; send them one by one"
        raise _refusal("SeveralDocuments", detail)
    return require_object(documents[0])


def parse_documents(text: bytes, *, allow_yaml: bool = True, max_bytes: int = MAX_BYTES) -> list[Any]:
    """Parses all documents of `text`, at least one: a JSON document, or one or several YAML documents."""
    if len(text) > max_bytes:
        raise too_large(len(text), max_bytes)
    if not text.strip():
        raise _empty_document()
    try:
        documents = [parse_json(text)]
    except Refused as refusal:
        if not allow_yaml or refusal.problem.code != "Undecodable":
            raise
        try:
            documents = parse_yaml(text, max_bytes)
        except Refused as yaml_refusal:
            if yaml_refusal.problem.code == "Undecodable" and text.lstrip()[:1] in (b"{", b"["):
                raise refusal from None  # the text was meant to be JSON
            raise
    documents = [document for document in documents if document is not None]
    if not documents:
        raise _empty_document()
    return documents


def require_object(document: Any) -> dict[str, Any]:
    """Returns the document if it is an object, and refuses it otherwise."""
    if not isinstance(document, dict):
        raise _refusal("Undecodable", "a document is an object with apiVersion, kind, metadata and spec")
    return document


def parse_json(text: bytes, containers: int = MAX_CONTAINERS) -> Any:
    """Parses JSON with at most this many objects and lists."""
    try:
        data = _json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refusal("Undecodable", f"this is not JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    check_bounds(data, containers)
    return data


def parse_yaml(text: bytes | str, max_bytes: int = MAX_BYTES) -> list[Any]:
    """Parses every document of a YAML text into JSON data of at most `max_bytes` bytes in all."""
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        check_yaml_bounds(decoded, max_bytes)
        # The detour over JSON keeps data that only YAML can express (number keys, sets, NaN) out of the stores.
        encoded = _encode(list(yaml.load_all(decoded, Loader)))
        if len(encoded) > max_bytes:
            raise too_large(len(encoded), max_bytes)
        documents: list[Any] = _json.decode(encoded)
    except (yaml.YAMLError, UnicodeError, ValueError, TypeError, OverflowError, msgspec.MsgspecError) as broken:
        raise _refusal("Undecodable", f"this is neither JSON nor YAML: {broken}") from None
    except RecursionError:
        raise _too_deep() from None
    return documents


def too_large(size: int, max_bytes: int) -> Refused:
    """Returns the refusal of a document of `size` bytes."""
    return _refusal("TooLarge", f"the document has {size} bytes; at most {max_bytes} are allowed", 413)


def _too_many(containers: int) -> Refused:
    return _refusal("TooLarge", f"the document has more than {containers} objects and lists", 413)


def _too_deep() -> Refused:
    return _refusal("TooDeep", f"the document is nested deeper than {MAX_DEPTH}")


def _empty_document() -> Refused:
    return _refusal("Empty", "there is no document; send one as JSON or YAML")


def check_bounds(data: Any, containers: int) -> None:
    """Bounds the number and the depth of objects and lists. JSON data needs no bound on bytes beyond that of its text."""
    level = [data] if isinstance(data, dict | list) else []
    count = 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if count > containers:
            raise _too_many(containers)
        children = [
            inside
            for item in level
            for inside in (item.values() if type(item) is dict else item)
            if type(inside) is dict or type(inside) is list
        ]
        if not children:
            return
        level = children
    raise _too_deep()


class _YamlNode:
    """The size of a node with all aliases in it expanded: its height, the number of objects and lists in it, and a lower
    bound of its bytes of JSON."""

    __slots__ = ("anchor", "bytes", "containers", "height")

    def __init__(self, anchor: str | None = None, size: int = 0, containers: int = 0) -> None:
        self.anchor, self.bytes, self.containers, self.height = anchor, size, containers, containers

    def add(self, other: _YamlNode, max_bytes: int, containers: int) -> None:
        self.bytes += other.bytes
        self.containers += other.containers
        self.height = max(self.height, other.height + 1)
        if self.bytes > max_bytes:
            detail = f"the document has more than {max_bytes} bytes with its aliases expanded, which is too many"
            raise _refusal("TooLarge", detail, 413)
        if self.containers > containers:
            raise _too_many(containers)
        if self.height > MAX_DEPTH:
            raise _too_deep()


def check_yaml_bounds(text: str, max_bytes: int, containers: int = MAX_CONTAINERS) -> None:
    """Computes the size of the parsed text from parser events, building nothing, and raises Refused where it exceeds a
    bound."""
    anchors: dict[str, _YamlNode] = {}
    open_nodes: list[_YamlNode] = []
    root = _YamlNode()
    for event in yaml.parse(text, Loader):
        if isinstance(event, yaml.ScalarEvent):
            node = _YamlNode(event.anchor, len(event.value) + 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append(_YamlNode(event.anchor, 1, 1))
            if len(open_nodes) > MAX_DEPTH:
                raise _too_deep()
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            node = open_nodes.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == open_node.anchor for open_node in open_nodes):
                raise _too_deep()  # the node contains itself
            node = anchors.get(event.anchor or "", _YamlNode())  # loading reports an unknown anchor
        else:
            if isinstance(event, yaml.DocumentStartEvent):
                anchors.clear()
                root.containers = 0  # counted per document, while bytes are counted for all
            continue
        if node.anchor:
            anchors[node.anchor] = node
        (open_nodes[-1] if open_nodes else root).add(node, max_bytes, containers)
