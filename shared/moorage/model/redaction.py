"""What is stored and never shown again: values of Kubernetes Secrets, in whatever holds them. Who sends back what was
shown keeps what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .problems import Refused, Violation, invalid

#: Stands in answers where a value is; sent back, it means "as it is".
REDACTED = "<hidden>"
_VALUES = ("data", "stringData")
#: What kubectl leaves on an object: the whole of it, once more.
_COPY = "kubectl.kubernetes.io/last-applied-configuration"
_SIGNS = ("Secret", "stringData", "kubeconfig", '"file":', "client-key-data", "token:", "PRIVATE KEY")


def redacted(value: Any) -> Any:
    """The same without the values of Secrets; the very same object where there are none."""
    if isinstance(value, dict):
        if value.get("kind") == "Secret" and "metadata" in value:
            return _without(value)
        changed = {k: new for k, old in value.items() if (new := redacted(old)) is not old}
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [redacted(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _without(secret: dict[str, Any]) -> dict[str, Any]:
    shown = dict(secret)
    for field in _VALUES:
        if (values := shown.get(field)) is not None:
            shown[field] = dict.fromkeys(values, REDACTED) if isinstance(values, dict) else REDACTED
    meta = shown["metadata"]
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    if isinstance(notes, dict) and _COPY in notes:
        shown["metadata"] = {**meta, "annotations": {**notes, _COPY: REDACTED}}
    return shown


def restored(value: Any, before: Any) -> Any:
    """What was hidden is what it was before. Raises Refused where there is nothing that it could be."""
    known: dict[tuple[Any, Any], dict[str, Any]] = {}
    for secret in _secrets(before):
        known[_name(secret)] = secret
    errors: list[Violation] = []
    found = _restored(value, known, "", errors)
    if errors:
        raise Refused(invalid(errors))
    return found


def _restored(value: Any, known: dict[tuple[Any, Any], dict[str, Any]], path: str, errors: list[Violation]) -> Any:
    if isinstance(value, list):
        return [_restored(item, known, f"{path}[{i}]", errors) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if value.get("kind") != "Secret" or "metadata" not in value:
        return {k: _restored(v, known, f"{path}.{k}" if path else str(k), errors) for k, v in value.items()}
    old = known.get(_name(value), {})
    whole = dict(value)
    for field in _VALUES:
        values, stored = whole.get(field), old.get(field)
        if values == REDACTED and stored is not None:
            whole[field] = stored
        elif isinstance(values, dict):
            whole[field] = {k: _value(k, v, stored, f"{path}.{field}.{k}", errors) for k, v in values.items()}
    meta, then = whole["metadata"], old.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    if isinstance(notes, dict) and notes.get(_COPY) == REDACTED:
        copy = (then.get("annotations") or {}).get(_COPY) if isinstance(then, dict) else None
        kept = {k: v for k, v in notes.items() if k != _COPY} | ({} if copy is None else {_COPY: copy})
        whole["metadata"] = {**meta, "annotations": kept}
    return whole


def _value(key: str, value: Any, stored: Any, path: str, errors: list[Violation]) -> Any:
    if value != REDACTED:
        return value
    if isinstance(stored, dict) and key in stored:
        return stored[key]
    message = f"{REDACTED} stands for a value that is stored, and none is; give the value"
    errors.append(Violation(path=path, code="Hidden", message=message))
    return value


def _name(secret: dict[str, Any]) -> tuple[Any, Any]:
    meta = secret["metadata"]
    return (str(meta.get("namespace", "")), str(meta.get("name"))) if isinstance(meta, dict) else ("", "")


def _secrets(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("kind") == "Secret" and "metadata" in value:
            yield value
        else:
            for inner in value.values():
                yield from _secrets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner)


def sample(data: bytes, most: int = 2048) -> str:
    """The beginning of a message that could not be read, for operators; nothing of one that may hold a secret."""
    text = data.decode("utf-8", "replace")
    if any(sign in text for sign in _SIGNS):
        return f"{len(data)} bytes that may hold secrets are not kept"
    return text[:most]
