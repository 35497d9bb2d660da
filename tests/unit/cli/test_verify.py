"""`stepstream verify` prints a file's verifications or its error, and calibrates judges."""

from pathlib import Path

import orjson
import pytest
from scripted_judge import reply, serve_replies

from stepstream.cli.main import FAULT, MISUSED, run
from stepstream.jobs.verifiers.sandbox import landlock
from stepstream.jobs.verifiers.sandbox import run as sandbox

FILE = """
[[verification]]
name = "answer"
verifier = "exact"
expected = "answers.jsonl"
[[verification]]
name = "quality"
verifier = "judge"
options = { min_items = 4 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPSTREAM_JUDGE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("STEPSTREAM_JUDGE_MODEL", "m")
    monkeypatch.setenv("STEPSTREAM_JUDGE_PER_MINUTE", "60000")
    (tmp_path / "verify.toml").write_text(FILE)
    (tmp_path / "answers.jsonl").write_text('{"task_id": "a", "expected": "4"}\n')
    rows = [{"id": str(n), "task": "q", "response": "r", "labels": [n % 2]} for n in range(8)]
    (tmp_path / "labelled.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return tmp_path


def test_check_prints_the_verifications_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "check", str(folder / "verify.toml"), "--json"]) == 0
    answer, quality = orjson.loads(capsys.readouterr().out)
    assert (answer["name"], answer["source"], answer["tasks"], answer["judge"]) == ("answer", "verifier", 1, None)
    assert (quality["source"], len(quality["judge"])) == ("judge", 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "verification"),
        ("[[verification", "is not TOML"),
        ('[[verification]]\nname = "a"\nverifier = "chess"', "no verifier 'chess'"),
        ('[[verification]]\nname = "a"\nverifier = "exact"\nexpected = "gone.jsonl"', "gone.jsonl"),
        ('[[verification]]\nname = "a"\nverifier = "exact"\nextract = "a"', "one group in parentheses"),
        ('[[verification]]\nname = "a"\nverifier = "exact"\nextract = "(a"', "missing )"),
        ('[[verification]]\nname = "a"\nverifier = "exact"\nlevel = "step"', "at level step read"),
        ('[[verification]]\nname = "a"\nverifier = "exact"\npointer = "/x"', "a pointer leads into"),
        ('[[verification]]\nname = "shadow.a"\nverifier = "exact"', "names that begin with shadow."),
        (2 * '[[verification]]\nname = "a"\nverifier = "exact"\n', "declared twice: a"),
        (
            '[[verification]]\nname = "a"\nverifier = "process_reward"\nlevel = "step"\nreads = "response"\n'
            'options = { model = "prm" }',
            "reads whole trajectories",
        ),
    ],
)
def test_check_reports_the_error_of_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (folder / "verify.toml").write_text(text)
    assert run(["verify", "check", str(folder / "verify.toml")]) == MISUSED
    assert message in capsys.readouterr().err


@pytest.mark.skipif(not landlock.version(), reason="needs Landlock: run on Linux 5.13 or later")
def test_check_runs_the_sandbox_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "verify.toml").write_text('[[verification]]\nname = "tests"\nverifier = "unit_tests"')
    assert run(["verify", "check", str(folder / "verify.toml")]) == 0
    assert "unit_tests of final_response" in capsys.readouterr().out
    monkeypatch.setattr(sandbox, "_LAUNCHER", "no.such.module")
    assert run(["verify", "check", str(folder / "verify.toml")]) == MISUSED
    assert "the code was not run" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"task_id": 1}', '{"task_id": "b"}\n{"task_id": "b"}'])
def test_check_names_the_line_of_expected_values(folder: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    (folder / "answers.jsonl").write_text(f'{{"task_id": "a"}}\n{line}')
    assert run(["verify", "check", str(folder / "verify.toml")]) == MISUSED
    assert f"line {2 + line.count(chr(10))}" in capsys.readouterr().err


def test_calibrate_reports_whether_the_agreement_suffices(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["verify", "calibrate", str(folder / "verify.toml"), "--set", str(folder / "labelled.jsonl"), "--dry-run"]
    monkeypatch.setenv("STEPSTREAM_VERIFY_PARALLEL", "1")
    low = "verdicts do not count: agreement 0.500 is below 0.75"
    for scores, status, message in (((0, 1) * 4, 0, "verdicts count"), ((1,) * 8, FAULT, low)):
        with serve_replies(*((200, reply(f'{{"score": {score}}}')) for score in scores)) as (url, _):
            monkeypatch.setenv("STEPSTREAM_JUDGE_URL", url)
            assert run(command) == status
        assert message in capsys.readouterr().out


def test_calibrate_reports_missing_inputs(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, labelled = str(folder / "verify.toml"), ["--set", str(folder / "labelled.jsonl")]
    assert run(["verify", "calibrate", file, *labelled]) == FAULT
    assert "does not answer" in capsys.readouterr().err
    assert run(["verify", "calibrate", file, *labelled, "--name", "answer"]) == MISUSED
    assert "has the judges quality" in capsys.readouterr().err
    assert run(["verify", "calibrate", *labelled]) == MISUSED
    assert run(["verify", "calibrate", "--next-state", *labelled]) == MISUSED
    assert "needs id, request, response, reaction, labels" in capsys.readouterr().err
    monkeypatch.setenv("STEPSTREAM_JUDGE_URL", "")
    assert run(["verify", "calibrate", "--next-state", *labelled]) == MISUSED
