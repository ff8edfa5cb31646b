"""Connects to the API server with a kubeconfig, or with the service account of the pod that the agent runs in.

`moorage.kube.connect` knows more ways of logging in, by a library that alone takes more memory than an agent may."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

from moorage.kube.api import Api, Unreachable
from moorage.kube.single_http import SingleHttp
from moorage.model.problems import Refused
from moorage.parsing.yaml_json import parse_document

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


async def connect(kubeconfig: Path | None = None) -> Api:
    """Connects with a kubeconfig; without one, as the pod's service account."""
    return await asyncio.to_thread(_from_file, kubeconfig) if kubeconfig is not None else _in_cluster()


def _in_cluster() -> Api:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (_ACCOUNT / "token").exists():
        raise Unreachable("no kubeconfig, and no service account of a pod; name one with --kubeconfig")
    address = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    headers = _token_from(_ACCOUNT / "token")
    return Api(f"https://{address}:{port}", headers=headers, transport=SingleHttp(tls))


def _from_file(path: Path) -> Api:
    try:
        config = parse_document(path.read_bytes())
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from error
    except Refused as error:
        raise Unreachable(f"{path}: {error}") from error
    context = _named(config, "contexts", "context", str(config.get("current-context", "")), path)
    cluster = _named(config, "clusters", "cluster", str(context.get("cluster", "")), path)
    user = _named(config, "users", "user", str(context.get("user", "")), path)
    if "exec" in user or "auth-provider" in user:
        raise Unreachable(
            f"{path}: the agent logs in with a token or a certificate, not with a program; give its user one of them"
        )
    server = str(cluster.get("server", ""))
    tls = _tls(cluster, user, path) if server.startswith("https") else None
    headers = None
    if token := user.get("token"):
        headers = _fixed(str(token))
    elif file := user.get("tokenFile"):
        headers = _token_from(path.parent / str(file))
    transport = SingleHttp(tls, cluster.get("tls-server-name"), cluster.get("proxy-url"))
    return Api(server, headers=headers, transport=transport)


def _named(config: dict[str, Any], kind: str, field: str, name: str, path: Path) -> dict[str, Any]:
    for entry in config.get(kind) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(field), dict):
            return dict(entry[field])
    raise Unreachable(f"{path}: there is no entry {name!r} in {kind}")


def _tls(cluster: dict[str, Any], user: dict[str, Any], path: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", path)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate, key = _content(user, "client-certificate", path), _content(user, "client-key", path)
    if certificate and key:
        with tempfile.NamedTemporaryFile() as file:  # ssl reads certificates of a client from files only
            file.write(certificate + b"\n" + key)
            file.flush()
            tls.load_cert_chain(file.name)
    return tls


def _content(entry: dict[str, Any], name: str, path: Path) -> bytes:
    """Returns what `NAME-data` holds in base64, or the file that `NAME` names."""
    try:
        if data := entry.get(f"{name}-data"):
            return base64.b64decode(str(data))
        if file := entry.get(name):
            return (path.parent / str(file)).read_bytes()
    except (OSError, binascii.Error) as error:
        raise Unreachable(f"{path}: {name}: {error}") from error
    return b""


def _fixed(token: str) -> Any:
    async def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"}

    return headers


def _token_from(file: Path) -> Any:
    """The token is read at each request: it is replaced before it expires."""

    async def headers() -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {file.read_text().strip()}"}  # noqa: ASYNC240 - a small file in memory
        except OSError as error:
            raise Unreachable(f"{file}: {error.strerror}") from error

    return headers
