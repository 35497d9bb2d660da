from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from labelled_records import attempt, labelled, tiny_model

from stepstream.config.sections import Learner
from stepstream.learner.batch import microbatches
from stepstream.learner.forward import chosen_logprobs
from stepstream.learner.update import Trainer


@given(st.lists(st.integers(1, 90)), st.integers(1, 400))
def test_every_sequence_is_in_one_microbatch_within_bounds(lengths: list[int], most: int) -> None:
    batches = microbatches(lengths, most)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= most for batch in batches)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return Trainer(tiny_model(tmp_path_factory.mktemp("model")), Learner())


def test_padding_and_left_out_logits_change_nothing(trainer: Trainer) -> None:
    rows = [attempt(labelled("g", n, 1.0, versions=(0,) * (n + 1))).sequences[0] for n in range(4)]
    with torch.no_grad():
        together = chosen_logprobs(trainer.model, rows).numpy()
        apart = []
        for row in rows:
            logits = trainer.model(torch.from_numpy(row.ids)[None]).logits[0].log_softmax(-1).numpy()
            apart.append(logits[row.trained - 1, row.ids[row.trained]])
    np.testing.assert_allclose(together, np.concatenate(apart), atol=2e-6)


def test_gradient_reaches_every_weight(trainer: Trainer, tmp_path: Path) -> None:
    chosen_logprobs(trainer.model, [attempt(labelled("g", 0, 1.0)).sequences[0]]).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in trainer.model.parameters())
    trainer.model.zero_grad()
