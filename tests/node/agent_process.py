"""Runs a node agent as a process, and asks it by its command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class AgentProcess:
    def __init__(self, root: Path, *arguments: str, environment: Mapping[str, str] = {}) -> None:
        self.root, self._arguments, self._environment = root, arguments, environment
        self.process: asyncio.subprocess.Process | None = None
        self.ready = ""

    @property
    def cri(self) -> str:
        return str(self.root / "cri.sock")

    async def start(self, *more: str) -> None:
        log = await asyncio.to_thread((self.root.parent / "agent.log").open, "ab")
        with log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "moorage.cli", "node", "run", "--root", str(self.root)),
                *(*self._arguments, *more),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._environment},
            )
        assert self.process.stdout is not None
        self.ready = (await asyncio.wait_for(self.process.stdout.readline(), 120)).decode().strip()
        if not self.ready.startswith("ready"):
            raise AssertionError(await asyncio.to_thread((self.root.parent / "agent.log").read_text))

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> float:
        """Ends the agent by SIGTERM and returns how long that took."""
        assert self.process is not None
        loop = asyncio.get_running_loop()
        started = loop.time()
        if self.process.returncode is None:
            self.process.terminate()
        await asyncio.wait_for(self.process.wait(), 60)
        return loop.time() - started

    async def command(self, *words: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moorage.cli", "node", *words, "--root", str(self.root)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        return process.returncode or 0, out.decode(), err.decode()

    async def ask(self, *words: str) -> Any:
        """Returns what a command prints as JSON; the items of a list."""
        code, out, err = await self.command(*words, "-o", "json")
        assert code in (0, 1), err
        found = json.loads(out)
        return found.get("items", found)

    async def metrics(self) -> str:
        reader, writer = await asyncio.open_unix_connection(self.root / "node.sock")
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.decode()
