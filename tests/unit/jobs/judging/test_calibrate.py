"""Calibrating a judge on a labelled set."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from scripted_judge import reply, serve_replies

from stepstream.config import JudgeSettings, Settings, SettingsError
from stepstream.jobs.judging.calibrate import NextStateJudge, VerifierJudge, calibrate, read_set
from stepstream.jobs.judging.judge import Judge, make
from stepstream.jobs.judging.next_state import digest as next_state_digest
from stepstream.jobs.verifiers.options import VerifierContext


def judge(url: str, known: Any = None, folder: Path = Path(), **options: Any) -> Judge:
    section = JudgeSettings(url=url, model="m", per_minute=1e6)
    configured = Settings().model_copy(update={"judge": section})
    return make(options, VerifierContext(configured, folder, {} if known is None else known))


def test_a_labelled_set_gives_a_calibration(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    rows = [{"id": str(n), "task": "q", "response": "right" if n % 2 else "wrong", "labels": [n % 2]} for n in range(6)]
    file.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    answers = [(200, reply(f'{{"score": {n % 2}}}')) for n in range(5)] + [(200, reply("?"))]
    with serve_replies(*answers) as (url, seen):
        request = VerifierJudge(judge(url))
        record = calibrate(request, read_set(file, request.fields), parallel=1, occurred_at_us=7, author="ann")
    assert (record["judge"], record["items"], record["unread"], record["agreement"]) == (request.digest, 5, 1, 1.0)
    assert (record["mode"], record["author"], record["occurred_at_us"]) == ("score", "ann", 7)
    assert len(seen) == 7  # one invalid answer was retried


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"id": "1", "task": "q", "response": "r"}',
        '{"id": "1", "task": "q", "response": "r", "labels": [2]}',
        '{"id": "1", "task": "q", "response": "r", "labels": [true]}',
        '{"id": "0", "task": "q", "response": "r", "labels": [1]}',
        '{"id": "1", "task": "q", "response": "r", "labels": [1], "reference": 3}',
    ],
)
def test_the_error_of_an_invalid_set_names_the_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text('{"id": "0", "task": "q", "response": "r", "labels": [1]}\n' + line)
    with pytest.raises(SettingsError, match="line 2"):
        read_set(file, ("task", "response"))


def test_the_next_state_judge_is_calibrated_on_three_outcomes(tmp_path: Path) -> None:
    file = tmp_path / "set.jsonl"
    rows = [
        {"id": str(n), "request": "q", "response": "r", "reaction": "thanks", "labels": [label]}
        for n, label in enumerate([1, 0, 0.5, 1])
    ]
    file.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    answers = [(200, reply(f'{{"score": {score}}}')) for score in (0.5, -1, 0.25, -0.5)]
    with serve_replies(*answers) as (url, seen):
        request = NextStateJudge(JudgeSettings(url=url, model="m", per_minute=1e6))
        record = calibrate(request, read_set(file, request.fields), parallel=1, occurred_at_us=7, author="")
    assert (record["judge"], record["mode"], record["items"]) == (next_state_digest("m"), "next_state", 4)
    assert (record["agreement"], record["order_consistency"], record["temperature"]) == (0.75, None, None)
    assert orjson.loads(seen[0][2]["messages"][1]["content"])["reaction"] == "thanks"
