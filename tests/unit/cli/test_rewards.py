"""`stepstream rewards check` prints a file's components or its error, without a broker."""

from pathlib import Path

import orjson
from click.testing import CliRunner

from stepstream.cli.main import cli

EXAMPLE = Path(__file__).parents[3] / "examples" / "rewards" / "guarded.toml"


def test_check_prints_the_components_of_a_file() -> None:
    result = CliRunner().invoke(cli, ["rewards", "check", str(EXAMPLE)])
    assert result.exit_code == 0
    first, *rest = result.output.splitlines()
    assert first.startswith("guarded (")
    assert first.endswith("): all agents")
    assert "outcome              term     weight 1, feedback 'outcome' by environment" in rest[0]
    as_json = CliRunner().invoke(cli, ["rewards", "check", str(EXAMPLE), "--json"])
    assert orjson.loads(as_json.output)["cap_malformed"] is True


def test_the_error_names_the_file_and_the_entry(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("cap_malformed = true\n")
    result = CliRunner().invoke(cli, ["rewards", "check", str(file)])
    assert result.exit_code == 1
    assert f"{file} is no reward specification: cap_malformed needs reward_bounds" in result.output
