"""Test which tokens end a turn."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepstream.learner.data.end_tokens import read_end_tokens


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [(2, None, {2}), ([2, 3], None, {2, 3}), (2, [3, 2], {2, 3}), (None, 0, {0}), (None, None, set())],
)
def test_both_files_name_ends(config: Any, generation: Any, ends: set[int], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation, "temperature": 0.6}))
    assert read_end_tokens(tmp_path) == ends


def test_a_missing_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"config\.json"):
        read_end_tokens(tmp_path)
