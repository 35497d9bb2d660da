"""Names are counted with a spaCy model, or the error says what to install."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from required_tools import require_package

from stepstream.jobs.governance.name_recogniser import NoModel, SpacyRecogniser, load_recogniser


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a pipeline that knows a person and a company."""
    require_package("spacy")
    spacy: Any = import_module("spacy")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PERSON", "pattern": "Ada Lovelace"}, {"label": "ORG", "pattern": "Acme"}])
    folder = tmp_path_factory.mktemp("model") / "names"
    pipeline.to_disk(folder)
    return Path(folder)


def test_a_spacy_model_is_loaded_from_its_folder(model: Path) -> None:
    recogniser = load_recogniser(str(model))
    assert recogniser.count_names(["Ada Lovelace works at Acme", "Ada Lovelace", ""]) == 2


def test_texts_above_the_size_limit_of_the_model_are_split(model: Path) -> None:
    recogniser = load_recogniser(str(model))
    assert isinstance(recogniser, SpacyRecogniser)
    recogniser._pipeline.max_length = 40
    assert recogniser.count_names([f"{'x ' * 20}Ada Lovelace"]) == 1


def test_without_a_model_the_error_gives_the_remedy() -> None:
    with pytest.raises(NoModel, match=r"inspect\.model is not set"):
        load_recogniser("")
    require_package("spacy")
    with pytest.raises(NoModel, match="cannot load no_such_model"):
        load_recogniser("no_such_model")
