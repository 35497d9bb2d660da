"""Files of lines, documents, arrays, gzip and Parquet are read; errors name their line."""

import gzip
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_strategies import episodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepstream.cli.dataset_import import AcceptedEpisode, RejectedDocument, read_episodes
from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets import files as dataset_files
from stepstream.datasets.files import FileLine, read_documents
from stepstream.datasets.parquet import ParquetFile
from stepstream.datasets.parquet import read_documents as rows

DATA = Path(__file__).parents[2] / "data" / "datasets"
ORIGIN = Origin(dataset="d", at_us=1_760_000_000_000_000, consent="train")
ITEMS = [{"a": 1}, {"b": ["[", "]", "{\n}"]}, {"c": "é" * 20}]


@pytest.mark.parametrize(
    "text",
    [
        b"\n".join(map(orjson.dumps, ITEMS)),
        b"\xef\xbb\xbf\n\n" + b"\r\n\n".join(map(orjson.dumps, ITEMS)) + b"\n",
        orjson.dumps(ITEMS),
        orjson.dumps(ITEMS, option=orjson.OPT_INDENT_2),
        b"\n".join(orjson.dumps(item, option=orjson.OPT_INDENT_2) for item in ITEMS),
        b"[\n" + b",\n".join(map(orjson.dumps, ITEMS)) + b"\n]\n",
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_lines_arrays_and_indented_documents_are_read(
    text: bytes, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_files, "_CHUNK", chunk)
    plain, packed = tmp_path / "f.json", tmp_path / "f.json.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert [item.document for item in read_documents(plain)] == ITEMS
    assert list(read_documents(packed)) == list(read_documents(plain))


def test_an_invalid_line_yields_an_error_and_reading_continues(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_bytes(b'{"a": 1}\nnot JSON\n{"a": \xff\n\n{"a": 2}\n')
    first, second, third, fourth = read_documents(file)
    assert (first, fourth) == (FileLine(1, {"a": 1}), FileLine(5, {"a": 2}))
    assert [(item.line, item.document) for item in (second, third)] == [(2, None), (3, None)]
    assert [(item.error or "")[:7] for item in (second, third)] == ["not JSO", "not UTF"]


def test_an_unreadable_rest_of_a_file_yields_an_error_with_its_line(tmp_path: Path) -> None:
    packed, lines, scattered = tmp_path / "f.jsonl.gz", tmp_path / "f.jsonl", tmp_path / "f.json"
    packed.write_bytes(gzip.compress(b'{"a": 1}\n' * 5000)[:-9])
    *valid, last = read_documents(packed)
    assert [item.line for item in valid] == list(range(1, len(valid) + 1))
    assert (last.line, last.error is not None) == (len(valid) + 1, True)
    lines.write_bytes('{"a": "é"}\n'.encode("latin-1") + b'{"a": 1}\n')
    scattered.write_bytes(b"[" + '{"a": "é"}'.encode("latin-1") + b', {"a": 1}]')
    for path in (lines, scattered):
        first, second = read_documents(path)
        assert (first.error, second.document) == ("not UTF-8: byte 0xe9 after 7 characters", {"a": 1})


@pytest.mark.parametrize("is_array", [False, True])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'{"a": ["cut \ud83d", "\ud83d\ude00"]}', ["cut \ufffd", "\U0001f600"]),
        (b'{"a": [Infinity, 123456789012345678901234567890]}', [float("inf"), 1.2345678901234568e29]),
    ],
)
def test_json_extensions_of_other_writers_are_read(text: bytes, value: Any, is_array: bool, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"[" + text + b"]" if is_array else text)
    assert [item.document for item in read_documents(file)] == [{"a": value}]


def test_gzip_utf16_and_pipes_are_detected_by_content(tmp_path: Path) -> None:
    file, pipe = tmp_path / "f.jsonl", tmp_path / "pipe"
    text = '{"a": "é"}\n{"a": 2}\n'
    for content in (gzip.compress(text.encode()), text.encode("utf-16")):
        file.write_bytes(content)
        assert [item.document for item in read_documents(file)] == [{"a": "é"}, {"a": 2}]
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(pipe.write_text, text)
        assert [item.document for item in read_documents(pipe)] == [{"a": "é"}, {"a": 2}]
        written.result()


def test_an_invalid_first_line_yields_one_error(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_bytes(b'garbage\n{"a": 1}\n')
    assert [item.error is None for item in read_documents(file)] == [False, True]


def test_a_truncated_document_yields_an_error(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_bytes(b'[\n{"a": 1},\n{"a": ')
    first, second = read_documents(file)
    assert first.document == {"a": 1}
    assert second.error is not None
    file.write_bytes(b"\n")
    assert list(read_documents(file)) == []


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(written=st.lists(episodes(), min_size=1, max_size=4, unique_by=lambda episode: episode.trajectory_id))
def test_episodes_survive_a_round_trip_through_parquet(
    written: list[Episode], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "episodes.parquet"
    with ParquetFile(path) as file:
        for episode in written:
            file.write(episode)
    read_back = [found for item in rows(path) for found in FORMATS["rlds"].read(item.document, ORIGIN)]
    assert read_back == written


def test_d4rl_arrays_are_split_at_terminals_and_timeouts(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "observations": [[0.5], [1.0], [1.5], [2.0], [2.5]],
        "actions": [[1], [0], [1], [1], [0]],
        "rewards": [0.0, 1.0, 0.0, 0.5, 0.0],
        "terminals": [False, True, False, False, False],
        "timeouts": [False, False, False, True, False],
    }
    pq.write_table(pa.table(columns), tmp_path / "d4rl.parquet")
    found = list(read_episodes(tmp_path / "d4rl.parquet", "parquet", ORIGIN, tenant=None, agent=None))
    assert all(isinstance(item, AcceptedEpisode) for item in found)
    episodes = [item.episode for item in found if isinstance(item, AcceptedEpisode)]
    assert [[step["response"]["content"] for step in episode.steps] for episode in episodes] == [
        ["[1]", "[0]"],
        ["[1]", "[1]"],
        ["[0]"],
    ]
    assert [episode.steps[-1]["end"] for episode in episodes] == ["terminated", "truncated", "truncated"]
    assert [episode.trajectory_id for episode in episodes] == ["d/1", "d/3", "d/5"]
    assert episodes[0].rewards == {0: 0.0, 1: 1.0}


def test_invalid_parquet_files_yield_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"no Parquet")
    pq.write_table(pa.table({"episode_id": ["a"], "messages": ["[]"]}), tmp_path / "g")
    for name, reason in (("f", "cannot be read as Parquet"), ("g", "'action' is missing")):
        [bad] = read_episodes(tmp_path / name, "parquet", ORIGIN, tenant=None, agent=None)
        assert isinstance(bad, RejectedDocument)
        assert reason in bad.reason


def test_different_trajectories_under_one_id_are_rejected(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    lines = [orjson.dumps({"id": "task-1", "messages": [{"role": "assistant", "content": text}]}) for text in "abab"]
    file.write_bytes(b"\n".join(lines))
    found = list(read_episodes(file, "chat", ORIGIN, tenant=None, agent=None))
    assert [(item.line, type(item)) for item in found] == [
        (1, AcceptedEpisode),
        (2, RejectedDocument),
        (3, AcceptedEpisode),
        (4, RejectedDocument),
    ]


def test_two_tenants_trajectories_of_one_name_stay_apart_in_a_file(tmp_path: Path) -> None:
    """An export has both. They are imported for their own tenants; for one tenant, the second would join the first."""
    lines = []
    for tenant in ("acme", "shop"):
        origin = Origin(dataset="d", at_us=1_760_000_000_000_000, consent="analyse", tenant=tenant)
        messages = [{"role": "user", "content": f"Hi {tenant}"}, {"role": "assistant", "content": "Hello"}]
        [episode] = FORMATS["chat"].read({"id": "session-1", "messages": messages}, origin)
        lines += [orjson.dumps(document) for document in FORMATS["chat"].write(episode)]
    file = tmp_path / "f.jsonl"
    file.write_bytes(b"\n".join([*lines, *lines]))  # a file with each twice is no fault: events have identities
    own = list(read_episodes(file, "chat", ORIGIN, tenant=None, agent=None))
    assert all(isinstance(item, AcceptedEpisode) for item in own)
    records = [step for item in own if isinstance(item, AcceptedEpisode) for step in item.episode.steps]
    assert {(step["tenant"], step["trajectory_id"]) for step in records} == {
        ("acme", records[0]["trajectory_id"]),
        ("shop", records[0]["trajectory_id"]),
    }
    given = list(read_episodes(file, "chat", ORIGIN, tenant="third", agent=None))
    assert [type(item) for item in given] == [AcceptedEpisode, RejectedDocument, AcceptedEpisode, RejectedDocument]
    assert isinstance(given[1], RejectedDocument)
    assert "tenant shop and tenant acme" in given[1].reason


def test_an_import_rejects_events_that_govern_would_reject_and_never_loosens_consent(tmp_path: Path) -> None:
    [written] = FORMATS["chat"].write(next(iter(_valid_episodes())))
    broken = orjson.loads(orjson.dumps(written))
    broken["metadata"]["stepstream"]["steps"][0]["step_index"] = -1
    mistyped = orjson.loads(orjson.dumps(written))
    mistyped["metadata"]["stepstream"]["steps"][0]["group_id"] = 7
    unknown = orjson.loads(orjson.dumps(written))
    unknown["metadata"]["stepstream"]["steps"][0]["no_such_field"] = 7
    later = orjson.loads(orjson.dumps(written))
    later["metadata"]["stepstream"]["version"] = 2
    file = tmp_path / "f.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, [written, broken, mistyped, unknown, later])))
    first, *others = read_episodes(file, "chat", ORIGIN, tenant="acme", agent="named")
    assert isinstance(first, AcceptedEpisode)
    [step] = first.episode.steps
    assert (step["consent"], step["tenant"], step["agent"]) == ("analyse", "acme", "named")
    assert [(other.line, type(other)) for other in others] == [(line, RejectedDocument) for line in (2, 3, 4, 5)]
    reasons = [other.reason for other in others if isinstance(other, RejectedDocument)]
    expected = zip(("negative", "group_id", "no_such_field", "version 2"), reasons, strict=True)
    assert all(part in reason for part, reason in expected), reasons


def _valid_episodes() -> list[Episode]:
    [episode] = FORMATS["chat"].read(
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        Origin(dataset="d", at_us=1_760_000_000_000_000, consent="analyse"),
    )
    return [episode]
