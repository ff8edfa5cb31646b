"""Applies and deletes EMCO files: documents with `version: emco/v2` and `resourceContext.anchor: projects/p/composite-apps`,
the path they are posted to. They are applied in order and deleted in reverse order. If the anchor ends in a life-cycle step
such as `instantiate`, that step is taken."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .documents import Document
from .exit_codes import DONE, TIMEOUT, USAGE, Failure
from .gateway_client import Client, Refusal
from .terminal import note, out

STEPS = ("approve", "instantiate", "update", "migrate", "rollback", "stop", "terminate", "apply", "status")
_NOT_SENT = {"version", "resourceContext", "file", "files"}
_POLL_SECONDS = 0.2


def is_anchored(body: dict[str, Any]) -> bool:
    return "resourceContext" in body


class AnchoredDocument:
    """An EMCO document split into its anchor, its body and its file."""

    def __init__(self, document: Document) -> None:
        self.where = document.where
        body = document.body
        context = body.get("resourceContext")
        anchor = context.get("anchor") if isinstance(context, dict) else None
        if not isinstance(anchor, str) or not anchor.strip("/ "):
            raise Failure(f"{self.where}: resourceContext.anchor is required", USAGE)
        self.parts = [part for part in anchor.strip("/ ").removeprefix("v2/").split("/") if part]
        self.body = {key: value for key, value in body.items() if key not in _NOT_SENT}
        files = [body["file"]] if body.get("file") else list(body.get("files") or [])
        if len(files) > 1:
            raise Failure(f"{self.where}: only one file is allowed, got {len(files)}", USAGE)
        self.file = self._find_file(document, str(files[0])) if files else None

    def _find_file(self, document: Document, name: str) -> Path:
        for base in (document.base, Path()):
            if (base / name).is_file():
                return base / name
        raise Failure(
            f"{self.where}: file '{name}' exists neither beside the document nor in the current directory", USAGE
        )

    @property
    def step(self) -> str:
        return self.parts[-1] if self.parts[-1] in STEPS and len(self.parts) > 1 else ""

    @property
    def url(self) -> str:
        return "/v2/" + "/".join(quote(part, safe="") for part in self.parts)

    @property
    def names(self) -> list[str]:
        """Returns the path segments of the resource below its collection: usually its name; composite apps add their
        version."""
        fields = {str(k).lower().replace("-", ""): v for k, v in self.body.items()}
        meta = fields.get("metadata")
        if isinstance(meta, dict):
            name = next((v for k, v in meta.items() if str(k).lower() == "name"), None)
            if name is not None and self.parts[-1] == "composite-apps":
                spec = fields.get("spec")
                spec = spec if isinstance(spec, dict) else {}
                version = next((v for k, v in spec.items() if str(k).lower().endswith("version")), None)
                return [str(name), str(version)]
            if name is not None:
                return [str(name)]
        for field in ("clusterlabel", "labelname", "label"):
            if field in fields:
                return [str(fields[field])]
        raise Failure(f"{self.where}: metadata.name is required", USAGE)

    @property
    def resource_url(self) -> str:
        return self.url + "".join("/" + quote(name, safe="") for name in self.names)

    @property
    def title(self) -> str:
        return "/".join(self.parts if self.step else (*self.parts, *self.names))


# --- applying --------------------------------------------------------------------------------------------------------


def apply(client: Client, document: Document) -> dict[str, Any]:
    """Creates or updates the resource; see `outcome` in the answer."""
    given = AnchoredDocument(document)
    if given.step:
        try:
            reply = client.call("POST", given.url, body=given.body or None, where=given.where, timeout=90)
        except Refusal as refusal:
            if given.step != "approve" or refusal.problem.get("code") != "WrongState" or not _is_running(client, given):
                raise
            return {"accepted": True, "name": given.title, "outcome": "unchanged"}
        outcome = reply.get("outcome", "done") if isinstance(reply, dict) else "done"
        return {"accepted": True, "name": given.title, "outcome": outcome, "answer": reply}
    try:
        answer = _send(client, "POST", given.url, given)
        return {"accepted": True, "name": given.title, "outcome": "created", "answer": answer}
    except Refusal as refusal:
        if refusal.problem.get("code") != "AlreadyExists":
            raise
    return {"accepted": True, "name": given.title, **_replace(client, given)}


def _is_running(client: Client, given: AnchoredDocument) -> bool:
    """Returns whether the group is instantiated, which implies that it was approved."""
    status = client.call("GET", given.url.rsplit("/", 1)[0] + "/status", query={"output": "summary"})
    return status["state"] in ("Instantiated", "InstantiateStopped")


def _replace(client: Client, given: AnchoredDocument) -> dict[str, Any]:
    existing = client.call("GET", given.resource_url, where=given.where)
    if given.file is None and _is_same(given, existing):
        return {"outcome": "unchanged", "answer": existing}
    try:
        answer = _send(client, "PUT", given.resource_url, given)
    except Refusal as refusal:
        # A resource with children cannot be replaced, and need not be where nothing would change.
        if refusal.status == 405 or (refusal.problem.get("code") == "HasChildren" and _is_same(given, existing)):
            return {"outcome": "unchanged", "answer": existing}
        raise
    return {"outcome": "unchanged" if answer == existing else "updated", "answer": answer}


def _is_same(given: AnchoredDocument, existing: dict[str, Any]) -> bool:
    """Compares normalized bodies, so different spellings are the same. Contents of files cannot be compared here."""
    import msgspec

    from moorage.intents.core.v2_normalize import read
    from moorage.model.problems import Refused
    from moorage.model.v2_resources import kind_of

    kind = kind_of(tuple(given.parts), collection=True)
    if kind is None:
        return False
    try:
        wanted = msgspec.to_builtins(read(kind, given.body).body)
    except Refused:
        return False
    derived = ("resourceConsumers", "resourceRequirements")
    spec = {k: v for k, v in existing.get("spec", {}).items() if k not in derived}
    return bool({**wanted, "spec": wanted.get("spec", {})} == {**existing, "spec": spec})


def _send(client: Client, method: str, url: str, given: AnchoredDocument) -> Any:
    if given.file is None:
        return client.call(method, url, body=given.body, where=given.where)
    boundary = secrets.token_hex(16)
    lines = [
        f"--{boundary}",
        'Content-Disposition: form-data; name="metadata"',
        "Content-Type: application/json",
        "",
        json.dumps(given.body),
        f"--{boundary}",
        f'Content-Disposition: form-data; name="file"; filename="{given.file.name}"',
        "Content-Type: application/octet-stream",
        "",
        "",
    ]
    data = "\r\n".join(lines).encode() + given.file.read_bytes() + f"\r\n--{boundary}--\r\n".encode()
    kind = f"multipart/form-data; boundary={boundary}"
    return client.call(method, url, data=data, kind=kind, where=given.where)


# --- deleting --------------------------------------------------------------------------------------------------------


def delete(client: Client, document: Document, wait: bool, within: float) -> int:
    """Deletes the resource, or terminates the group if the document is a step that started it. A resource that does not
    exist is no error."""
    given = AnchoredDocument(document)
    end = time.monotonic() + within
    if given.step:
        return _undo(client, given, wait, end)
    try:
        client.call("DELETE", given.resource_url, where=given.where)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        out(f"{given.title} not found")
    else:
        out(f"{given.title} deleted")
    return DONE


def _undo(client: Client, given: AnchoredDocument, wait: bool, end: float) -> int:
    if given.step not in ("instantiate", "apply") or "deployment-intent-groups" not in given.parts:
        return DONE
    group = given.url.rsplit("/", 1)[0]
    title = "/".join(given.parts[:-1])
    try:
        client.call("POST", group + "/terminate", where=given.where, timeout=60)
    except Refusal as refusal:
        if refusal.status == 404 or refusal.problem.get("code") == "WrongState":
            return DONE  # it is not running
        raise
    while wait:
        status = client.call("GET", group + "/status", query={"output": "summary"}, where=given.where)
        if status["phase"] == "Terminated":
            break
        if time.monotonic() > end:
            note(f"moorage: timed out waiting for {title} to terminate")
            return TIMEOUT
        time.sleep(_POLL_SECONDS)
    out(f"{title} terminated")
    return DONE
