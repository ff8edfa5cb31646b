"""Removes the values of Secrets before records and resources enter the read model, so that no handler can return them."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from moorage.model.groups import GroupRecord
from moorage.model.problems import Refused
from moorage.model.v2_resources import Path
from moorage.parsing import yaml_json
from moorage.parsing.redaction import REDACTED, redact

_record = msgspec.json.Decoder(GroupRecord).decode
_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
#: Records without this text have no Secret and need no decoding here.
_MARKER = b'"Secret"'
#: The intent store's limit for manifests as text, with YAML aliases expanded.
MAX_SHOWN = 4 << 20


def shown_record(raw: bytes) -> GroupRecord:
    record = _record(raw)
    if _MARKER in raw:
        record.document = redact(record.document)
        record.manifests = redact(record.manifests)
    return record


def shown_body(path: Path, raw: bytes) -> bytes:
    """Returns a resource's body without values of Secrets. Only apps have manifests, as objects or as YAML text."""
    if len(path) != 7 or path[5] != "apps":
        return raw
    body = _any(raw)
    spec = body.get("spec") or {}
    manifests = spec.get("manifests")
    safe = _redacted_text(manifests) if isinstance(manifests, str) else redact(manifests)
    return raw if safe is manifests else _encode({**body, "spec": {**spec, "manifests": safe}})


def _redacted_text(text: str) -> str:
    if "ecret" not in text and "\\" not in text:
        return text
    try:
        found: list[Any] = yaml_json.parse_yaml(text, MAX_SHOWN)
    except Refused:
        return REDACTED  # It was readable when it was stored. Now it is not, so nothing of it is shown.
    safe = redact(found)
    if safe is found:
        return text
    return yaml.dump_all(safe, Dumper=yaml.CSafeDumper, sort_keys=False)
