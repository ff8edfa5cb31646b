"""Base of what a test starts: it is removed at the end of the block, also if starting it fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self


class Resource(ABC):
    @abstractmethod
    def start(self) -> Any: ...

    @abstractmethod
    def remove(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
