"""Connections by a kubeconfig: all ways to log in, without importing a class for each kind of Kubernetes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from moorage.kube import Unreachable, connect
from moorage_testkit.scripted_api import ScriptedServer, write_kubeconfig

_IMPORTS = """
import asyncio, sys
from moorage.kube import config_library, connect

imported = set()
sys.addaudithook(lambda event, arguments: imported.add(arguments[0]) if event == "import" else None)

async def main():
    await (await connect(sys.argv[1])).close()

asyncio.run(main())
print(len([name for name in imported if name.startswith("kubernetes_asyncio.client.")]))
# A version of the library that cannot be imported in part.
def fails(): raise ImportError
config_library._import_part = fails
config_library.library.cache_clear()
asyncio.run(main())
import kubernetes_asyncio
whole = kubernetes_asyncio.client
print(whole.CoreV1Api.__name__, config_library.library().configuration is whole.Configuration)
"""


class _Server(ScriptedServer):
    def __init__(self) -> None:
        super().__init__()
        self.authorizations: list[str] = []

    async def other(self, request: web.Request, path: str) -> web.StreamResponse:
        self.authorizations.append(request.headers["Authorization"])
        return web.json_response({})


def test_the_library_is_imported_in_part_and_can_be_imported_whole(tmp_path: Path) -> None:
    kubeconfig = str(write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1", token="secret"))
    command = [sys.executable, "-c", _IMPORTS, kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    modules, whole = done.stdout.splitlines()
    assert int(modules) < 5
    assert whole == "CoreV1Api True"


async def test_a_login_by_a_token_and_one_by_a_program(tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "made"},
    }
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(credential))})"],
        "interactiveMode": "Never",
    }
    for user, token in (({"token": "secret"}, "secret"), ({"exec": program}, "made")):
        async with _Server() as server:
            api = await connect(str(write_kubeconfig(tmp_path / "config", server.url, **user)))
            await api.call("GET", "/version")
            await api.close()
        assert server.authorizations == [f"Bearer {token}"]


async def test_a_kubeconfig_that_says_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("{}")
    with pytest.raises(Unreachable, match="no usable Kubernetes configuration"):
        await connect(tmp_path / "config")
