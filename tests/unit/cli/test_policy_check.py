"""`stepstream policy check`: a control policy in words, or the line of its fault."""

import json
from pathlib import Path

from click.testing import CliRunner

from stepstream.cli.main import cli


def test_a_policy_is_explained_in_words(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        "quiet_hours = ['22:00-06:00']\n[levers.weights]\napprovals = 2\n[levers.memory]\nenabled = false\n"
    )
    result = CliRunner().invoke(cli, ["policy", "check", str(file)])
    assert result.exit_code == 0, result.output
    for words in (
        "22:00-06:00 UTC",
        "2 of operator, admin must approve",
        "memory is never pulled",
        "with a power of 80 %",
        "No built-in rule is about skills: nothing pulls it.",
    ):
        assert words in result.output
    explained = json.loads(CliRunner().invoke(cli, ["policy", "check", str(file), "--json"]).output)
    assert explained["sentences"] == result.output.splitlines()
    assert explained["policy"]["levers"]["weights"]["approvals"] == 2


def test_a_contradiction_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("freeze = false\n\n[levers.tools]\nbudget_per_day = 0\n")
    result = CliRunner().invoke(cli, ["policy", "check", str(file)])
    assert result.exit_code == 1
    assert "line 4: levers.tools.budget_per_day" in result.output
