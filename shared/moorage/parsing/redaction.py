"""Hides the values of Kubernetes Secrets, which are stored and never shown, and restores them when a client sends the
redacted object back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moorage.model.problems import Refused, Violation, invalid

#: Replaces a value in answers. Sent back, it means that the value is unchanged.
REDACTED = "<hidden>"
_VALUE_FIELDS = ("data", "stringData")
#: The annotation in which kubectl keeps a copy of the object.
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECRET_MARKERS = ("Secret", "stringData", "kubeconfig", '"file":', "client-key-data", "token:", "PRIVATE KEY")


def redact(value: Any) -> Any:
    """Hides the values of all Secrets in `value`; returns the same object where there are none."""
    if isinstance(value, dict):
        if value.get("kind") == "Secret" and "metadata" in value:
            return _redact_secret(value)
        changed = {k: new for k, old in value.items() if (new := redact(old)) is not old}
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [redact(item) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _redact_secret(secret: dict[str, Any]) -> dict[str, Any]:
    shown = dict(secret)
    for field in _VALUE_FIELDS:
        if (values := shown.get(field)) is not None:
            shown[field] = dict.fromkeys(values, REDACTED) if isinstance(values, dict) else REDACTED
    meta = shown["metadata"]
    annotations = meta.get("annotations") if isinstance(meta, dict) else None
    if isinstance(annotations, dict) and _LAST_APPLIED in annotations:
        shown["metadata"] = {**meta, "annotations": {**annotations, _LAST_APPLIED: REDACTED}}
    return shown


def restore(value: Any, before: Any) -> Any:
    """Replaces hidden values with those in `before`. Raises Refused for a hidden value that `before` does not have."""
    restorer = _Restorer(before)
    result = restorer.restore(value, "")
    if restorer.errors:
        raise Refused(invalid(restorer.errors))
    return result


class _Restorer:
    """The stored Secrets by namespace and name, and the violations found so far."""

    def __init__(self, before: Any) -> None:
        self._stored = {_identity(secret): secret for secret in _find_secrets(before)}
        self.errors: list[Violation] = []

    def restore(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.restore(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if value.get("kind") == "Secret" and "metadata" in value:
            return self._restore_secret(value, path)
        return {k: self.restore(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()}

    def _restore_secret(self, redacted: dict[str, Any], path: str) -> dict[str, Any]:
        stored = self._stored.get(_identity(redacted), {})
        secret = dict(redacted)
        for field in _VALUE_FIELDS:
            values, before = secret.get(field), stored.get(field)
            if values == REDACTED and before is not None:
                secret[field] = before
            elif isinstance(values, dict):
                secret[field] = {k: self._restore_value(k, v, before, f"{path}.{field}.{k}") for k, v in values.items()}
        meta, stored_meta = secret["metadata"], stored.get("metadata")
        annotations = meta.get("annotations") if isinstance(meta, dict) else None
        if isinstance(annotations, dict) and annotations.get(_LAST_APPLIED) == REDACTED:
            kept = {k: v for k, v in annotations.items() if k != _LAST_APPLIED}
            copy = (stored_meta.get("annotations") or {}).get(_LAST_APPLIED) if isinstance(stored_meta, dict) else None
            if copy is not None:
                kept[_LAST_APPLIED] = copy
            secret["metadata"] = {**meta, "annotations": kept}
        return secret

    def _restore_value(self, key: str, value: Any, before: Any, path: str) -> Any:
        if value != REDACTED:
            return value
        if isinstance(before, dict) and key in before:
            return before[key]
        message = f"{REDACTED} stands for a stored value, but none is stored; give the value"
        self.errors.append(Violation(path=path, code="Hidden", message=message))
        return value


def _identity(secret: dict[str, Any]) -> tuple[Any, Any]:
    meta = secret["metadata"]
    return (str(meta.get("namespace", "")), str(meta.get("name"))) if isinstance(meta, dict) else ("", "")


def _find_secrets(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if value.get("kind") == "Secret" and "metadata" in value:
            yield value
        else:
            for inner in value.values():
                yield from _find_secrets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _find_secrets(inner)


def loggable_excerpt(data: bytes, length: int = 2048) -> str:
    """Returns the beginning of a message that could not be decoded, for operators. A message that may hold a secret is
    withheld."""
    text = data.decode("utf-8", "replace")
    if any(marker in text for marker in _SECRET_MARKERS):
        return f"{len(data)} bytes that may hold secrets are not kept"
    return text[:length]
