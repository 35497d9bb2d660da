"""`stepstream import --dry-run` and the errors of `stepstream export`, without a stack."""

import json
from pathlib import Path

import pytest

from stepstream.cli.datasets import _stem, _writer
from stepstream.cli.main import run

DATA = Path(__file__).parents[2] / "data" / "datasets"


def test_invalid_lines_are_reported_by_number_and_the_others_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mixed.jsonl"
    sound = (DATA / "chat.jsonl").read_text()
    file.write_text(sound + 'no JSON\n{"messages": [{"role": "user", "content": "Hi"}]}\n{"text": 1}\n')
    assert run(["import", str(file), "--format", "chat", "--consent", "train", "--dry-run", "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out) == {
        "trajectories": 3,
        "steps": 4,
        "feedback": 0,
        "bad": 3,
        "left_out": [],
        "published": False,
    }
    fourth, fifth, sixth = output.err.splitlines()
    assert fourth.startswith("mixed.jsonl:4: not JSON")
    assert fifth == "mixed.jsonl:5: the document contains no response of an agent"
    assert sixth == "mixed.jsonl:6: not a document of format chat: 'messages' is missing"


@pytest.mark.parametrize("name", ["adp.json", "atif.json", "rlds.jsonl"])
def test_a_dry_run_needs_no_stack(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    form = name.partition(".")[0]
    assert run(["import", str(DATA / name), "--format", form, "--consent", "analyse", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("checked: ")
    assert run(["import", str(DATA / name), "--format", form, "--dry-run"]) == 1
    assert "give --consent" in capsys.readouterr().err


def test_files_whose_names_differ_after_a_dot_are_different_datasets() -> None:
    stems = {
        "runs.2026-01.jsonl.gz": "runs.2026-01",
        "runs.2026-02.jsonl.gz": "runs.2026-02",
        ".json": ".json",
        "a": "a",
    }
    assert {name: _stem(name) for name in stems} == stems


def test_export_checks_its_output_before_it_queries_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "--format", "chat", "--out", str(tmp_path / "no" / "f")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run(["export", "--format", "chat", "--json"]) == 2
    assert "give --out FILE" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["chat", "parquet"])
def test_an_interrupted_export_leaves_no_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), _writer(name, tmp_path / "f"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_parquet_needs_an_output_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "--format", "parquet"]) == 2
    assert "give --out FILE" in capsys.readouterr().err
