"""Hold docs/control.md to the code: its commands run, its tables are complete, and its rule decides."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepstream.cli.main import cli
from stepstream.services.control.decide.diagnosis import RULES
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import CANARY_RULES, History, Outcome, Snapshot, Source
from stepstream.services.control.decide.reference import policy_tables
from stepstream.services.control.decide.words import describe
from stepstream.services.control.simulate.recorded import Recorded, to_line

PAGES = Path(__file__).parents[3] / "docs"
PAGE = (PAGES / "control.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


LINES = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
COMMANDS = [words for words in LINES if words[0] != "make"]
"""Without those of make, which have tests of their own in tests/end_to_end."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with the files that the page's commands name."""
    (tmp_path / "policy.toml").write_text(blocks("toml")[0])
    outcomes = tuple(Outcome("stable", True) for _ in range(60))
    snapshot = Snapshot("default", "support-1", "m", 1, 1, Source("v", "1"), outcomes)
    (tmp_path / "snapshots.jsonl").write_bytes(to_line(Recorded(snapshot, History())))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the page's rule as a package; return the file of a policy that names it."""
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "rules.py").write_text(blocks("python")[0])
    info = folder / "shop-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1\n")
    header, point = blocks("toml")[1].splitlines()
    group = header.removeprefix("[project.entry-points.").strip('"]')
    (info / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n")
    monkeypatch.syspath_prepend(folder)
    policy = folder / "own.toml"
    policy.write_text(blocks("toml")[2])
    return policy


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_page_runs(command: list[str], folder: Path) -> None:
    program, *words = command
    assert program == "stepstream"
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert result.output


def test_a_target_of_the_page_exists() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (PAGES.parent / "Makefile").read_text(), re.MULTILINE)
    assert {words[1] for words in LINES if words[0] == "make"} <= set(targets)


def test_the_page_explains_the_default_policy_as_the_code_does() -> None:
    default = ControlPolicy()
    assert policy_tables() in PAGE
    assert "\n".join(f"> - {sentence}" for sentence in describe(default)) in PAGE


def test_the_page_lists_every_rule_with_its_source() -> None:
    table = PAGE[PAGE.index("## Rules") : PAGE.index("### False alarms")]
    rows = re.findall(r"^\| `(\w+)` \|.*\| [^|]{10,} \|$", table, re.MULTILINE)
    assert sorted(rows) == sorted([*CANARY_RULES, *RULES])


def test_the_rule_of_the_page_decides(package: Path, folder: Path) -> None:
    outcomes = tuple(Outcome("stable", i % 3 > 0, stratum="refund", harmed=i % 3 == 0) for i in range(90))
    snapshot = Snapshot("default", "shop", "m", 1, 1, Source("v", "1"), outcomes)
    log = folder / "harm.jsonl"
    log.write_bytes(to_line(Recorded(snapshot, History())))
    result = invoke("simulate", str(package), "--log", str(log))
    assert result.exit_code == 0, result.output
    assert "disable tools refund: refunds do harm" in result.output
    assert len(blocks("python")[0].strip().splitlines()) - 1 <= 10  # without the empty line


def test_policy_check_names_the_version_of_an_own_rule(package: Path) -> None:
    result = invoke("policy", "check", str(package), "--json")
    assert result.exit_code == 0, result.output
    assert '"refund_harm": "shop 1 ' in result.output


@pytest.mark.parametrize("command", [("policy", "check"), ("policy", "control", "apply")])
def test_a_rule_that_is_not_installed_is_refused_with_its_line(command: tuple[str, ...], folder: Path) -> None:
    (folder / "own.toml").write_text('freeze = false\nown_rules = ["refund_harm"]\n')
    result = invoke(*command, "own.toml")
    assert result.exit_code == 1
    assert "line 2: own_rules: no rule 'refund_harm'; installed rules: none" in result.output
