"""Makes the OpenAPI 3.1 document from the route table and the types that it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from moorage.model.auth import ROLES
from moorage.model.problems import Problem

from ..route import JSON, SSE, YAML, Query, Route

_REF = "#/components/schemas/{name}"
PROBLEM = "application/problem+json"
_PHRASES = {
    200: "Success.",
    201: "Created.",
    202: "Accepted and in progress.",
    204: "Success without content.",
    400: "The request is not valid; every violation is listed.",
    401: "The token is missing or invalid.",
    403: "The token does not have permission.",
    404: "Not found.",
    409: "Conflict with an existing resource, or wrong state.",
    412: "The resource has changed; If-Match does not match its ETag.",
    413: "The body is too large.",
    415: "The media type of the body is not supported.",
    429: "Too many requests; see Retry-After.",
    503: "A part of the mesh does not answer; see Retry-After.",
}


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    rows = list(routes)
    types = _types(rows)
    schemas, components = msgspec.json.schema_components(list(types.values()), ref_template=_REF)
    refs = _Refs(dict(zip(types, schemas, strict=True)))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        paths.setdefault(_plain(row.path), {})[row.method.lower()] = _operation(row, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Moorage",
            "version": version,
            "description": "Places applications on the clusters of a Kubernetes fleet by their hardware capabilities. "
            "Errors are problem documents (RFC 9457) with stable codes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(row.tag for row in rows if row.tag)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token from `moorage token create`, or the administrator's from endpoint.json.",
                }
            },
        },
    }


class _Refs:
    """Maps types to schemas."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas

    def __getitem__(self, one: Any) -> Any:
        parts = _parts(one)
        return self._schemas[repr(one)] if len(parts) == 1 else {"anyOf": [self._schemas[repr(part)] for part in parts]}


def _parts(one: Any) -> tuple[Any, ...]:
    """Splits unions of Structs: msgspec refuses them, because it could not tell which one to decode."""
    if get_origin(one) in (Union, UnionType) and type(None) not in get_args(one):
        return get_args(one)
    return (one,)


def _types(rows: Sequence[Route]) -> dict[str, Any]:
    named: list[Any] = [Problem]
    for row in rows:
        for one in (row.reply, row.body, *(query.type for query in row.query)):
            if one is not None:
                named += _parts(one)
    return {repr(one): one for one in named}


def _plain(path: str) -> str:
    """Removes aiohttp's patterns from path parameters."""
    return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)


def _operation(row: Route, refs: _Refs) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": row.summary, "operationId": _operation_id(row)}
    if row.tag:
        operation["tags"] = [row.tag]
    if row.open:
        operation["security"] = []
    else:
        operation["description"] = _roles_text(row)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", _plain(row.path))
    ]
    parameters += [_query(query, refs) for query in row.query]
    if row.etag == "request":
        parameters.append(_header("If-Match", "Fail with 412 unless this is the current ETag."))
    if SSE in row.produces:
        parameters.append(_header("Last-Event-ID", "Resume after this event."))
    if parameters:
        operation["parameters"] = parameters
    if row.body is not None:
        schema = refs[row.body]
        content = {kind: {"schema": schema if kind == JSON else {}} for kind in row.consumes}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = _responses(row, refs)
    return operation


def _roles_text(row: Route) -> str:
    """Names all roles that may call the operation."""
    *others, last = ROLES[ROLES.index(row.needed) :]
    text = f"Requires the role {', '.join(others)} or {last}." if others else f"Requires the role {last}."
    return f"{text} {row.role_detail}".rstrip()


def _query(query: Query, refs: _Refs) -> dict[str, Any]:
    found = {"name": query.name, "in": "query", "description": query.description, "schema": refs[query.type]}
    if query.type is int:
        found["schema"] = {"type": "integer", "minimum": 0, "maximum": 999_999}
    if query.example is not None:
        found["example"] = query.example
    return found


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _operation_id(row: Route) -> str:
    words = re.findall(r"\w+", _plain(row.path).replace("/v1", ""))
    return "_".join([row.method.lower(), *words])


def refusal_statuses(row: Route) -> list[int]:
    found = set(row.refusals)
    if not row.open:
        found |= {401, 403, 429}
    if "{" in row.path:
        found.add(404)
    if row.query or row.body is not None:
        found.add(400)
    if row.body is not None:
        found |= {404, 413}
    if row.changes:
        found |= {409, 503}
    if row.etag == "request":
        found |= {400, 412}
    return sorted(found)


def _responses(row: Route, refs: _Refs) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status in (row.status, *row.also):
        found: dict[str, Any] = {"description": _PHRASES[status]}
        if row.reply is not None and status != 204:
            found["content"] = {kind: _content(kind, refs[row.reply]) for kind in row.produces}
        if row.etag == "response":
            found["headers"] = {"ETag": {"description": "The version of the resource.", "schema": {"type": "string"}}}
        answers[str(status)] = found
    problem = {"content": {PROBLEM: {"schema": refs[Problem]}}}
    for status in refusal_statuses(row):
        answers[str(status)] = {"description": _PHRASES[status], **problem}
    return answers


def _content(kind: str, schema: Any) -> dict[str, Any]:
    if kind in (JSON, YAML):
        return {"schema": schema}
    # A batch of events is an array; all other media types are text.
    return {"schema": {"type": "array"} if kind.endswith("-batch+json") else {"type": "string"}}
