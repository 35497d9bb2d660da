"""Check the warm start: reproducible, all or nothing, trained on the assistant's tokens only."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepstream.learner.tiny.warm_start import WarmStart, warm_start
from stepstream.services.fleet.environment import demonstrations
from stepstream.services.fleet.lookup import Lookup


def echo() -> Iterator[list[dict[str, Any]]]:
    """The user says random things; the assistant always says the same."""
    for conversation in demonstrations(Lookup, seed=0, noise=1.0):
        yield [conversation[0], {"role": "assistant", "content": "ok"}]


def short(folder: Path, seed: int = 0) -> bytes:
    warm_start(folder, demonstrations(Lookup, 1, 0.2), WarmStart(steps=3, batch=4, seed=seed))
    return (folder / "model.safetensors").read_bytes()


def test_the_same_settings_give_the_same_bytes(tmp_path: Path) -> None:
    first = short(tmp_path / "a")
    assert short(tmp_path / "b") == first
    assert short(tmp_path / "c", seed=1) != first


def test_only_the_assistant_s_tokens_are_learned(tmp_path: Path) -> None:
    """Three tokens that never change are soon certain, however random the user's are."""
    loss = warm_start(tmp_path / "m", echo(), WarmStart(steps=40, batch=8))
    assert loss < 0.02


def test_an_existing_folder_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="remove it"):
        short(tmp_path)


def test_nothing_is_left_of_a_warm_start_that_fails(tmp_path: Path) -> None:
    with pytest.raises(StopIteration):
        warm_start(tmp_path / "m", iter([]), WarmStart(steps=1))
    assert list(tmp_path.iterdir()) == []
