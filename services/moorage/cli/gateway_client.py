"""HTTP client of the gateway. It uses the standard library only, because its imports delay every command."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from .exit_codes import UNREACHABLE, USAGE, Failure, of_status
from .state_dir import StateDirectory, state_dir


class Refusal(Failure):
    """A problem document from the gateway; callers may look at its code."""

    def __init__(
        self, problem: dict[str, Any], status: int, where: str = "", client: Client | None = None, path: str = ""
    ) -> None:
        self.problem = problem
        self.status = status
        self.client, self.path = client, path  # of the refused request
        super().__init__(problem_text(problem, where), of_status(status))


def problem_text(problem: Mapping[str, Any], where: str = "") -> str:
    """Formats a problem with one violation per line, each with its path."""
    title = problem.get("title") or "Refused"
    detail = problem.get("detail") or ""
    errors = problem.get("errors") or []
    head = f"{where}: " if where else ""
    if len(errors) == 1 and errors[0].get("path"):
        return f"{head}{title}: {errors[0]['path']}: {errors[0].get('message', '')}"
    lines = [f"{head}{title}: {detail}" if detail and not errors else f"{head}{title}:"]
    lines += [f"  {e.get('path') or '.'}: {e.get('message', '')}" for e in errors]
    return "\n".join(lines)


class Client:
    def __init__(self, url: str, token: str, hint: str = "", timeout: float = 20.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failure(f"{url!r} is not an http:// or https:// URL", USAGE)
        self.url = url.rstrip("/")
        self._token = token
        self._hint = hint
        self._timeout = timeout
        self._tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port
        self._prefix = parts.path.rstrip("/")
        self._kept: http.client.HTTPConnection | None = None

    @classmethod
    def find(cls, state: Path | None = None) -> Client:
        """Uses `MOORAGE_URL` and `MOORAGE_TOKEN` if set, else the endpoint file of the mesh on this machine."""
        if state is None and (url := os.environ.get("MOORAGE_URL")):
            return cls(url, os.environ.get("MOORAGE_TOKEN", ""), "see MOORAGE_URL")
        where = StateDirectory(state_dir(state))
        endpoint = where.read_endpoint()
        if endpoint is None:
            raise Failure(
                f"no mesh is running here: {where.endpoint} does not exist; start one with `moorage up`, name its state "
                "directory with --state, or set MOORAGE_URL and MOORAGE_TOKEN",
                UNREACHABLE,
            )
        return cls(endpoint["http"], endpoint["token"], "run `moorage check` for details")

    def _connect(self, timeout: float | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=timeout)

    def _unreachable(self, error: Exception) -> Failure:
        text = "did not answer in time" if isinstance(error, TimeoutError) else f"cannot be reached ({error})"
        return Failure(f"the gateway at {self.url} {text}" + (f"; {self._hint}" if self._hint else ""), UNREACHABLE)

    def _headers(self, kind: str) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if kind:
            headers["Content-Type"] = kind
        return headers

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,
        where: str = "",
        data: bytes | None = None,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Sends one request and returns the decoded answer, or raises Refusal. `data` is a body of content type `kind`,
        used instead of a JSON `body`."""
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        data = data if body is None else json.dumps(body, separators=(",", ":")).encode()
        for attempt in (0, 1):
            fresh = self._kept is None
            conn = self._kept = self._kept or self._connect(timeout or self._timeout)
            try:
                conn.request(method, target, data, {**self._headers(kind if data else ""), **(headers or {})})
                reply = conn.getresponse()
                content = reply.read()
            except (OSError, http.client.HTTPException) as error:
                conn.close()
                self._kept = None
                # The server may have closed a kept connection while it was idle, so only a failure of a fresh one counts.
                if fresh or attempt or method == "POST":
                    raise self._unreachable(error) from error
                continue
            break
        if reply.will_close:
            conn.close()
            self._kept = None
        try:
            answer = json.loads(content) if content else None
        except ValueError:
            answer = {"title": f"HTTP {reply.status}", "detail": content[:300].decode(errors="replace")}
        if reply.status >= 400:
            problem = answer if isinstance(answer, dict) else {}
            if "title" not in problem and problem.get("errors"):  # as the Placement interface has it
                problem = problem["errors"][0]
            if reply.status == 401 and not self._token:
                problem = {
                    **problem,
                    "detail": f"{problem.get('detail', 'no token')}; set MOORAGE_TOKEN together with MOORAGE_URL",
                }
            raise Refusal(problem, reply.status, where, self, path)
        return answer

    def get(self, path: str, **query: str) -> Any:
        return self.call("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Returns a complete list, fetched page by page."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.get(path, **query)
            found += page["items"]
            if not page.get("continue"):
                return found
            query["continue"] = page["continue"]

    def events(self, subject: str, until: float | None = None) -> Iterator[dict[str, Any] | None]:
        """Yields live events, and None for each keep-alive; the first None says that the subscription is active."""
        conn = self._connect(self._timeout)
        try:
            target = f"{self._prefix}/v1/events?{urlencode({'subject': subject})}"
            headers = self._headers("") | {"Accept": "text/event-stream"}
            conn.request("GET", target, headers=headers)
            reply = conn.getresponse()
            if reply.status != 200:
                raise Refusal(json.loads(reply.read() or b"{}"), reply.status)
            yield from self._stream(conn, reply, until)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            conn.close()

    def _stream(
        self, conn: http.client.HTTPConnection, reply: http.client.HTTPResponse, until: float | None
    ) -> Iterator[dict[str, Any] | None]:
        data: list[bytes] = []
        while True:
            if until is not None and conn.sock is not None:
                left = until - time.monotonic()
                if left <= 0:
                    return
                conn.sock.settimeout(left)
            try:
                line = reply.readline()
            except TimeoutError:
                if until is not None:
                    return
                raise
            if not line:
                raise http.client.HTTPException("the event stream ended")
            line = line.rstrip(b"\r\n")
            if line.startswith(b"data:"):
                data.append(line[5:].lstrip())
            elif line.startswith(b":"):
                yield None
            elif not line and data:
                yield json.loads(b"\n".join(data))
                data.clear()


def group_path(group: str, *rest: str) -> str:
    """Returns a path such as `/v1/groups/p/a/v/g/why` for a full group name."""
    return "/v1/groups/" + "/".join(quote(part, safe="") for part in (*group.split("/"), *rest))


def path(*parts: str) -> str:
    """Returns a path under /v1 with every part quoted. A cluster's `provider/name` is passed as two parts."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)
