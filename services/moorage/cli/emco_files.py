"""Documents that name the place they go to (`version: emco/v2`, `resourceContext.anchor: projects/p/composite-apps`):
applied in their order, deleted in the reverse one. An anchor that ends in a step of a life cycle takes that step."""

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
_OURS = {"version", "resourceContext", "file", "files"}
_PAUSE = 0.2


def is_anchored(body: dict[str, Any]) -> bool:
    return "resourceContext" in body


class Anchored:
    """One such document, taken apart."""

    def __init__(self, document: Document) -> None:
        self.where = document.where
        body = document.body
        context = body.get("resourceContext")
        anchor = context.get("anchor") if isinstance(context, dict) else None
        if not isinstance(anchor, str) or not anchor.strip("/ "):
            raise Failure(f"{self.where}: resourceContext.anchor is required: the path this goes to", USAGE)
        self.parts = [part for part in anchor.strip("/ ").removeprefix("v2/").split("/") if part]
        self.body = {key: value for key, value in body.items() if key not in _OURS}
        files = [body["file"]] if body.get("file") else list(body.get("files") or [])
        if len(files) > 1:
            raise Failure(f"{self.where}: one file is taken, this names {len(files)}", USAGE)
        self.file = self._file(document, str(files[0])) if files else None

    def _file(self, document: Document, name: str) -> Path:
        for base in (document.base, Path()):
            if (base / name).is_file():
                return base / name
        raise Failure(f"{self.where}: file: there is no '{name}', neither beside the document nor here", USAGE)

    @property
    def step(self) -> str:
        return self.parts[-1] if self.parts[-1] in STEPS and len(self.parts) > 1 else ""

    @property
    def url(self) -> str:
        return "/v2/" + "/".join(quote(part, safe="") for part in self.parts)

    @property
    def names(self) -> list[str]:
        """How the document calls itself: a label by itself, composite apps with their version."""
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
    def own(self) -> str:
        return self.url + "".join("/" + quote(name, safe="") for name in self.names)

    @property
    def title(self) -> str:
        return "/".join(self.parts if self.step else (*self.parts, *self.names))


# --- applying --------------------------------------------------------------------------------------------------------


def apply(client: Client, document: Document) -> dict[str, Any]:
    """Makes it, or makes what is there like it. `outcome` says which."""
    given = Anchored(document)
    if given.step:
        try:
            reply = client.call("POST", given.url, body=given.body or None, where=given.where, timeout=90)
        except Refusal as refusal:
            if given.step != "approve" or refusal.problem.get("code") != "WrongState" or not _runs(client, given):
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


def _runs(client: Client, given: Anchored) -> bool:
    """What runs was approved before."""
    status = client.call("GET", given.url.rsplit("/", 1)[0] + "/status", query={"output": "summary"})
    return status["state"] in ("Instantiated", "InstantiateStopped")


def _replace(client: Client, given: Anchored) -> dict[str, Any]:
    there = client.call("GET", given.own, where=given.where)
    if given.file is None and _same(given, there):
        return {"outcome": "unchanged", "answer": there}
    try:
        answer = _send(client, "PUT", given.own, given)
    except Refusal as refusal:
        # What stands on it cannot be taken away for a change, and need not where nothing would change.
        if refusal.status == 405 or (refusal.problem.get("code") == "HasChildren" and _same(given, there)):
            return {"outcome": "unchanged", "answer": there}
        raise
    return {"outcome": "unchanged" if answer == there else "updated", "answer": answer}


def _same(given: Anchored, there: dict[str, Any]) -> bool:
    """Whether what is there is what is given, however that is spelled. Of files nothing is known here."""
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
    shown = dict(there)
    spec = {k: v for k, v in there.get("spec", {}).items() if k not in ("resourceConsumers", "resourceRequirements")}
    return bool({**wanted, "spec": wanted.get("spec", {})} == {**shown, "spec": spec})


def _send(client: Client, method: str, url: str, given: Anchored) -> Any:
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
    """What a step began is ended and waited for; what is gone already is no mistake."""
    given = Anchored(document)
    end = time.monotonic() + within
    if given.step:
        return _undo(client, given, wait, end)
    try:
        client.call("DELETE", given.own, where=given.where)
    except Refusal as refusal:
        if refusal.status != 404:
            raise
        out(f"{given.title} is not there")
    else:
        out(f"{given.title} deleted")
    return DONE


def _undo(client: Client, given: Anchored, wait: bool, end: float) -> int:
    if given.step not in ("instantiate", "apply") or "deployment-intent-groups" not in given.parts:
        return DONE
    group = given.url.rsplit("/", 1)[0]
    title = "/".join(given.parts[:-1])
    try:
        client.call("POST", group + "/terminate", where=given.where, timeout=60)
    except Refusal as refusal:
        if refusal.status == 404 or refusal.problem.get("code") == "WrongState":
            return DONE  # it does not run
        raise
    while wait:
        status = client.call("GET", group + "/status", query={"output": "summary"}, where=given.where)
        if status["phase"] == "Terminated":
            break
        if time.monotonic() > end:
            note(f"moorage: {title} is not terminated yet")
            return TIMEOUT
        time.sleep(_PAUSE)
    out(f"{title} terminated")
    return DONE
