"""Count names of people in texts with a spaCy model."""

import importlib.util
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol


class NoModel(SystemExit):
    """No model can be loaded; the message says what to install."""


class Recogniser(Protocol):
    """Finds names of people."""

    def count_names(self, texts: Iterable[str]) -> int:
        """Return the number of names in the texts."""
        ...


def load_recogniser(model: str) -> Recogniser:
    """Load a spaCy model by the name of an installed package or by its folder.

    Raises:
        NoModel: `model` is empty, or the model or spaCy is not installed.
    """
    if not model:
        raise NoModel("inspect.model is not set: name an installed spaCy model, or the folder of one")
    if importlib.util.find_spec("spacy") is None:
        raise NoModel("the inspect job needs spaCy: install stepstream[detectors]")
    import spacy

    try:
        return SpacyRecogniser(spacy.load(model))
    except OSError as error:
        raise NoModel(f"inspect.model: spaCy cannot load {model}; install it, or name its folder") from error


class SpacyRecogniser:
    """Recognises names with a spaCy pipeline."""

    LABELS: ClassVar = frozenset({"PERSON", "PER"})

    def __init__(self, pipeline: Any) -> None:
        """`pipeline` sets `doc.ents`."""
        self._pipeline = pipeline

    def count_names(self, texts: Iterable[str]) -> int:
        """Return the number of entities in the texts that are people."""
        limit = self._pipeline.max_length
        pieces = (text[at : at + limit] for text in texts for at in range(0, len(text), limit))
        return sum(entity.label_ in self.LABELS for doc in self._pipeline.pipe(pieces) for entity in doc.ents)
