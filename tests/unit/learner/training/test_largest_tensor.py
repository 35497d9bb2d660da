"""Check that an update never holds the logits of all its tokens, for any vocabulary."""

from pathlib import Path
from typing import Any

import pytest
from labelled_records import attempt, labelled
from largest_tensor import LargestTensor
from tiny_families import tiny_of

from stepstream.config import LearnerSettings
from stepstream.learner.model import lm_head
from stepstream.learner.training.trainer import Trainer

VOCABULARY = 50_000
MOST_LOGITS = 64 * VOCABULARY
"""Of the fewest tokens that the output layer is computed for at once."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_of("llama", tmp_path_factory.mktemp("model"), vocabulary=VOCABULARY)


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param({}, id="all weights"),
        pytest.param({"lora_rank": 2}, id="adapters"),
        pytest.param({"kl_weight": 0.1}, id="with a reference"),
        pytest.param({"lora_rank": 2, "kl_weight": 0.1}, id="adapters with a reference"),
        pytest.param({"objective": "dpo"}, id="preferences"),
    ],
)
def test_no_tensor_of_an_update_is_larger(
    folder: Path, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lm_head._MAX_LOGITS, "cpu", 1)
    trainer = Trainer(
        folder, LearnerSettings(preset="tiny", microbatch_tokens=100_000, minibatches=1, **choice), root=folder
    )
    group = [attempt(labelled("g", number, float(number), versions=(0,) * 55)) for number in range(2)]
    with LargestTensor() as largest:
        figures = trainer.update(1, [group], version=0)
    assert figures["grad_norm"] > 0
    assert largest.elements == MOST_LOGITS < figures["tokens"] * VOCABULARY / 8
