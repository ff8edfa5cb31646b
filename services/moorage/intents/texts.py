"""From bytes to plain data: JSON first, else one YAML document; bounded in size, depth and number of values before
anything else looks at it (YAML aliases can make a kilobyte into gigabytes)."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from moorage.model.problems import Problem, Refused

MAX_BYTES = 768 << 10
MAX_DEPTH = 64
MAX_CONTAINERS = 100_000

_json = msgspec.json.Decoder()


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Dates stay text, as in JSON: nothing in a document is a date."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _bad(code: str, detail: str, status: int = 400) -> Refused:
    return Refused(Problem(title="Not readable", status=status, code=code, detail=detail))


def data_of(text: bytes) -> dict[str, Any]:
    """The one object that `text` holds. Raises Refused, never anything else."""
    if len(text) > MAX_BYTES:
        raise _bad("TooLarge", f"the document has {len(text)} bytes; at most {MAX_BYTES} are taken", 413)
    if not text.strip():
        raise _bad("Empty", "there is no document; send one as JSON or YAML")
    try:
        data = _json.decode(text)
    except msgspec.DecodeError as error:
        data = _yaml(text, error)
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(data, dict):
        raise _bad("Undecodable", "a document is an object with apiVersion, kind, metadata and spec")
    bounded(data)
    return data


def _yaml(text: bytes, error: Exception) -> Any:
    if text.lstrip()[:1] in (b"{", b"["):
        raise _bad("Undecodable", f"this is not JSON: {error}") from None
    try:
        found = list(yaml.load_all(text.decode(), Loader))
        # What YAML has and JSON has not (keys that are numbers, sets, NaN) must not reach a store.
        documents = [d for d in found if d is not None]
        for document in documents:
            bounded(document)
        documents = _json.decode(msgspec.json.encode(documents))
    except yaml.YAMLError as broken:
        raise _bad("Undecodable", f"this is neither JSON nor YAML: {broken}") from None
    except (UnicodeDecodeError, ValueError, TypeError, OverflowError, msgspec.MsgspecError) as broken:
        raise _bad("Undecodable", f"this is neither JSON nor YAML: {broken}") from None
    except RecursionError:
        raise _too_deep() from None
    if len(documents) != 1:
        raise _bad(
            "SeveralDocuments", f"one message holds one document, this one {len(documents)}; send them one by one"
        )
    return documents[0]


def _too_deep() -> Refused:
    return _bad("TooDeep", f"the document is nested deeper than {MAX_DEPTH}")


def bounded(data: Any) -> None:
    level = [data]
    seen = 0
    for _ in range(MAX_DEPTH):
        seen += len(level)
        if seen > MAX_CONTAINERS:
            raise _bad("TooLarge", f"the document has more than {MAX_CONTAINERS} objects and lists", 413)
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
