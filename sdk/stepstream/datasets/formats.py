"""The formats by name. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepstream.datasets import adp, atif, chat, rlds
from stepstream.datasets.episode import Episode, Origin, Unreadable


@dataclass(frozen=True)
class Format:
    """A format: documents of it are JSON objects."""

    name: str
    write: Callable[[Episode], list[dict[str, Any]]]
    _read: Callable[[Mapping[str, Any], Origin], list[Episode]]

    def read(self, document: Any, origin: Origin) -> list[Episode]:
        """The episodes of a document.

        Raises:
            Unreadable: it is not what the format promises.
        """
        if not isinstance(document, Mapping):
            raise Unreadable("it is no JSON object")
        try:
            return self._read(document, origin)
        except KeyError as error:
            raise Unreadable(f"it is not {self.name}: {error} is missing") from None
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise Unreadable(f"it is not {self.name}: {error}") from None


FORMATS = {module.FORMAT: Format(module.FORMAT, module.write, module.read) for module in (adp, atif, chat, rlds)}
