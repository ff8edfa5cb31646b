"""The read model never holds what must not be shown: values of Secrets end here, before anybody can ask."""

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
#: Nothing is of this kind that does not say so.
_SIGN = b'"Secret"'
#: As large as the intent store takes a text of manifests, with its aliases written out.
MAX_SHOWN = 4 << 20


def shown_record(raw: bytes) -> GroupRecord:
    record = _record(raw)
    if _SIGN in raw:
        record.document = redact(record.document)
        record.manifests = redact(record.manifests)
    return record


def shown_body(path: Path, raw: bytes) -> bytes:
    """Of a resource's body what may be seen: apps carry manifests, as objects or as YAML text."""
    if len(path) != 7 or path[5] != "apps":
        return raw
    body = _any(raw)
    spec = body.get("spec") or {}
    manifests = spec.get("manifests")
    safe = _shown_text(manifests) if isinstance(manifests, str) else redact(manifests)
    return raw if safe is manifests else _encode({**body, "spec": {**spec, "manifests": safe}})


def _shown_text(text: str) -> str:
    if "ecret" not in text and "\\" not in text:
        return text
    try:
        found: list[Any] = yaml_json.parse_yaml(text, MAX_SHOWN)
    except Refused:
        return REDACTED  # it was read once; whatever it is now is not shown
    safe = redact(found)
    if safe is found:
        return text
    return yaml.dump_all(safe, Dumper=yaml.CSafeDumper, sort_keys=False)
