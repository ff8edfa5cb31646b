"""Connects to the API server that a kubeconfig context or the pod's service account names.

kubernetes-asyncio provides all its ways of authentication. Its import is slow, so it happens in these functions only, and in part.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from .api import Api, Unreachable
from .config_library import library

#: After a 401 the configuration is read again, at most once in this many seconds.
_RELOAD_INTERVAL = 10.0


async def connect(kubeconfig: str | Path | None = None, context: str | None = None) -> Api:
    """Connects with this kubeconfig and context. Without either: the pod's service account in a pod, else $KUBECONFIG or
    ~/.kube/config."""
    credentials = _Credentials(kubeconfig, context)
    await credentials.load()
    configuration = credentials.configuration
    host = configuration.host or ""
    return Api(
        host,
        headers=credentials.headers,
        tls=_tls(configuration) if host.startswith("https") else None,
        server_name=configuration.tls_server_name or None,
        proxy=configuration.proxy or None,
        renew=credentials.renew,
    )


class _Credentials:
    """The configuration of kubernetes-asyncio, which is loaded again when the server refuses the credentials."""

    def __init__(self, kubeconfig: str | Path | None, context: str | None) -> None:
        self.configuration: Any = library().configuration()
        self._kubeconfig, self._context = kubeconfig, context
        self._loaded_at = 0.0

    async def load(self) -> None:
        config = library().config
        self._loaded_at = asyncio.get_running_loop().time()
        try:
            if self._kubeconfig is None and self._context is None and _in_cluster():
                config.load_incluster_config(client_configuration=self.configuration)
            else:
                file = str(self._kubeconfig) if self._kubeconfig else None
                await config.load_kube_config(
                    config_file=file, context=self._context, client_configuration=self.configuration
                )
        except (config.ConfigException, OSError) as error:
            raise Unreachable(f"no usable Kubernetes configuration: {error}") from error

    async def headers(self) -> dict[str, str]:
        token = await self.configuration.get_api_key_with_prefix("BearerToken")
        return {"Authorization": token} if token else {}

    async def renew(self) -> None:
        if asyncio.get_running_loop().time() - self._loaded_at > _RELOAD_INTERVAL:
            await self.load()


def _in_cluster() -> bool:
    return Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()


def _tls(configuration: Any) -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        tls.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return tls
