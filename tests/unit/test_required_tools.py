"""Test the skips of tests whose tool is missing, and the table of them."""

from pathlib import Path

import pytest
from required_tools import require_package, require_path, require_tool, summary


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, outside CI."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch(mode=0o755)


def test_a_tool_that_is_there(folder: Path) -> None:
    install(folder, "google-chrome", "node", "npm")
    assert require_tool("Chromium") == str(folder / "google-chrome")
    assert require_tool("Node", "Chromium") == str(folder / "node")


def test_a_missing_tool_skips_with_its_remedy(folder: Path) -> None:
    install(folder, "curl", "node")
    with pytest.raises(pytest.skip.Exception, match=r"^needs Node: install Node\.js 20 or later, with npm$"):
        require_tool("Node")
    with pytest.raises(pytest.skip.Exception, match=r"^needs jq and kcat: apt-get install jq; apt-get install kcat$"):
        require_tool("curl", "jq", "kcat")


def test_in_ci_a_missing_tool_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI lacks Go"):
        require_tool("Go")
    with pytest.raises(pytest.fail.Exception, match="CI lacks absent"):
        require_path(folder / "absent", "make it")


def test_packages_and_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert require_path(folder, "") == folder
    with pytest.raises(pytest.skip.Exception, match=r"^needs absent: make it$"):
        require_path(folder / "absent", "make it")
    monkeypatch.setattr("required_tools.find_spec", lambda module: None)
    with pytest.raises(pytest.skip.Exception, match=r"^needs spacy: the extra `detectors`"):
        require_package("spacy")


def test_the_table_counts_tests_by_reason() -> None:
    assert summary([]) == []
    assert summary(["Skipped: needs Go: install Go", "needs Java: install a JDK", "needs Go: install Go", "flaky"]) == [
        "tests  reason      how to run them",
        "    2  needs Go    install Go",
        "    1  flaky",
        "    1  needs Java  install a JDK",
    ]
