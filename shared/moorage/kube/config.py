"""Where the API server is and who we are there: a kubeconfig file and context, or the pod's service account. All ways of
authenticating that kubernetes-asyncio knows; its import is heavy, so only this module has it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from .api import Api, Unreachable

#: After a refused credential the configuration is read again, at most this often.
_RENEW_EVERY = 10.0


async def connect(kubeconfig: str | Path | None = None, context: str | None = None) -> Api:
    """Without a kubeconfig: $KUBECONFIG or ~/.kube/config where there is one, else the pod's service account."""
    from kubernetes_asyncio.client import Configuration

    found = Configuration()
    await _load(found, kubeconfig, context)
    host = found.host or ""
    loop = asyncio.get_running_loop()
    renewed = loop.time()

    async def headers() -> dict[str, str]:
        token = await found.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token} if token else {}

    async def renew() -> None:
        nonlocal renewed
        if loop.time() - renewed > _RENEW_EVERY:
            renewed = loop.time()
            await _load(found, kubeconfig, context)

    tls = _tls(found) if host.startswith("https") else None
    name = found.tls_server_name or None
    return Api(host, headers=headers, tls=tls, server_name=name, proxy=found.proxy or None, renew=renew)


async def _load(found: Any, kubeconfig: str | Path | None, context: str | None) -> None:
    from kubernetes_asyncio import config

    try:
        if kubeconfig is None and context is None and _in_a_pod():
            config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(
                config_file=str(kubeconfig) if kubeconfig else None, context=context, client_configuration=found
            )
    except (config.ConfigException, OSError) as error:
        raise Unreachable(f"no usable Kubernetes configuration: {error}") from error


def _in_a_pod() -> bool:
    return Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()


def _tls(found: Any) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
    if found.cert_file:
        tls.load_cert_chain(found.cert_file, keyfile=found.key_file)
    if not found.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if found.disable_strict_ssl_verification:
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls
