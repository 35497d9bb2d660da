"""Check which names `stepstream models publish` accepts, before it reads a model or the log."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from stepstream.cli.main import cli


@pytest.mark.parametrize("name", ["../other", "/etc/model", "a/../../b", "a//b", ".."])
def test_a_model_s_name_that_leaves_the_folder_of_versions_is_refused(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["models", "publish", str(tmp_path), "--model", name])
    assert result.exit_code == 1
    assert f"the name '{name}' leaves the folder of versions" in result.stderr
