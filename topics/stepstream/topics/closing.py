"""What holds connections or threads until it is closed, also as a context manager."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Its block ends with `close`, whatever happened in it."""

    @abstractmethod
    def close(self) -> None:
        """Frees what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
