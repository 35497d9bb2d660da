"""List the formats by name. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepstream.datasets import adp, atif, chat, rlds
from stepstream.datasets.episode import Episode, InvalidDocument, Origin


@dataclass(frozen=True)
class Format:
    """A format whose documents are JSON objects."""

    name: str
    write: Callable[[Episode], list[dict[str, Any]]]
    _read: Callable[[Mapping[str, Any], Origin], list[Episode]]

    def read(self, document: Any, origin: Origin) -> list[Episode]:
        """Return the episodes of a document.

        Raises:
            InvalidDocument: the document violates the format.
        """
        if not isinstance(document, Mapping):
            raise InvalidDocument("the document is not a JSON object")
        try:
            return self._read(document, origin)
        except KeyError as error:
            raise InvalidDocument(f"not a document of format {self.name}: {error} is missing") from None
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise InvalidDocument(f"not a document of format {self.name}: {error}") from None


FORMATS = {module.FORMAT: Format(module.FORMAT, module.write, module.read) for module in (adp, atif, chat, rlds)}
