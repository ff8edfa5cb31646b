"""What a test starts is removed when the test is done with it, also where starting it fails."""

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
