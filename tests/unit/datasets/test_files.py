"""Files: lines, whole documents, arrays, gzip and Parquet; what is broken in them is told with its place."""

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

from stepstream.cli.dataset_import import Bad, Found, read
from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets import files as dataset_files
from stepstream.datasets.files import FileLine, documents
from stepstream.datasets.parquet import ParquetFile
from stepstream.datasets.parquet import documents as rows

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
def test_documents_are_found_however_they_are_laid_out(
    text: bytes, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_files, "_CHUNK", chunk)
    plain, packed = tmp_path / "f.json", tmp_path / "f.json.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert [place.document for place in documents(plain)] == ITEMS
    assert list(documents(packed)) == list(documents(plain))


def test_a_broken_line_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_bytes(b'{"a": 1}\nnot JSON\n{"a": \xff\n\n{"a": 2}\n')
    first, second, third, fourth = documents(file)
    assert (first, fourth) == (FileLine(1, {"a": 1}), FileLine(5, {"a": 2}))
    assert [(place.line, place.document) for place in (second, third)] == [(2, None), (3, None)]
    assert [(place.error or "")[:13] for place in (second, third)] == ["it is no JSON", "it is not UTF"]


def test_what_cannot_be_read_is_told_where_it_begins(tmp_path: Path) -> None:
    packed, lines, scattered = tmp_path / "f.jsonl.gz", tmp_path / "f.jsonl", tmp_path / "f.json"
    packed.write_bytes(gzip.compress(b'{"a": 1}\n' * 5000)[:-9])
    *sound, last = documents(packed)
    assert [place.line for place in sound] == list(range(1, len(sound) + 1))
    assert (last.line, last.error is not None) == (len(sound) + 1, True)
    lines.write_bytes('{"a": "é"}\n'.encode("latin-1") + b'{"a": 1}\n')
    scattered.write_bytes(b"[" + '{"a": "é"}'.encode("latin-1") + b', {"a": 1}]')
    for path in (lines, scattered):
        first, second = documents(path)
        assert (first.error, second.document) == ("it is not UTF-8: byte 0xe9 after 7 characters", {"a": 1})


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'{"a": ["cut \ud83d", "\ud83d\ude00"]}', ["cut \ufffd", "\U0001f600"]),
        (b'{"a": [Infinity, 123456789012345678901234567890]}', [float("inf"), 1.2345678901234568e29]),
    ],
)
def test_what_other_writers_write_is_read(text: bytes, value: Any, whole: bool, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"[" + text + b"]" if whole else text)
    assert [place.document for place in documents(file)] == [{"a": value}]


def test_what_a_file_is_called_does_not_matter_nor_whether_it_is_a_pipe(tmp_path: Path) -> None:
    file, pipe = tmp_path / "f.jsonl", tmp_path / "pipe"
    text = '{"a": "é"}\n{"a": 2}\n'
    for content in (gzip.compress(text.encode()), text.encode("utf-16")):
        file.write_bytes(content)
        assert [place.document for place in documents(file)] == [{"a": "é"}, {"a": 2}]
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(pipe.write_text, text)
        assert [place.document for place in documents(pipe)] == [{"a": "é"}, {"a": 2}]
        written.result()


def test_a_first_line_that_is_broken_costs_that_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_bytes(b'garbage\n{"a": 1}\n')
    assert [place.error is None for place in documents(file)] == [False, True]


def test_a_document_that_is_cut_off_is_told(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_bytes(b'[\n{"a": 1},\n{"a": ')
    first, second = documents(file)
    assert first.document == {"a": 1}
    assert second.error is not None
    file.write_bytes(b"\n")
    assert list(documents(file)) == []


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(many=st.lists(episodes(), min_size=1, max_size=4, unique_by=lambda episode: episode.trajectory_id))
def test_episodes_come_back_whole_from_parquet(many: list[Episode], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("parquet") / "episodes.parquet"
    with ParquetFile(path) as file:
        for episode in many:
            file.write(episode)
    read_again = [found for place in rows(path) for found in FORMATS["rlds"].read(place.document, ORIGIN)]
    assert read_again == many


def test_d4rl_arrays_are_cut_into_episodes_where_they_end(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "observations": [[0.5], [1.0], [1.5], [2.0], [2.5]],
        "actions": [[1], [0], [1], [1], [0]],
        "rewards": [0.0, 1.0, 0.0, 0.5, 0.0],
        "terminals": [False, True, False, False, False],
        "timeouts": [False, False, False, True, False],
    }
    pq.write_table(pa.table(columns), tmp_path / "d4rl.parquet")
    found = list(read(tmp_path / "d4rl.parquet", "parquet", ORIGIN, tenant=None, agent=None))
    assert all(isinstance(item, Found) for item in found)
    episodes = [item.episode for item in found if isinstance(item, Found)]
    assert [[step["response"]["content"] for step in episode.steps] for episode in episodes] == [
        ["[1]", "[0]"],
        ["[1]", "[1]"],
        ["[0]"],
    ]
    assert [episode.steps[-1]["end"] for episode in episodes] == ["terminated", "truncated", "truncated"]
    assert [episode.trajectory_id for episode in episodes] == ["d/1", "d/3", "d/5"]
    assert episodes[0].rewards == {0: 0.0, 1: 1.0}


def test_what_is_no_parquet_or_has_no_actions_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"no Parquet")
    pq.write_table(pa.table({"episode_id": ["a"], "messages": ["[]"]}), tmp_path / "g")
    for name, said in (("f", "cannot be read as Parquet"), ("g", "'action' is missing")):
        [bad] = read(tmp_path / name, "parquet", ORIGIN, tenant=None, agent=None)
        assert isinstance(bad, Bad)
        assert said in bad.reason


def test_two_trajectories_under_one_id_are_told(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    lines = [orjson.dumps({"id": "task-1", "messages": [{"role": "assistant", "content": text}]}) for text in "abab"]
    file.write_bytes(b"\n".join(lines))
    found = list(read(file, "chat", ORIGIN, tenant=None, agent=None))
    assert [(item.line, type(item)) for item in found] == [(1, Found), (2, Bad), (3, Found), (4, Bad)]


def test_an_import_tells_what_govern_would_refuse_and_never_loosens_consent(tmp_path: Path) -> None:
    [ours] = FORMATS["chat"].write(next(iter(_sound())))
    broken = orjson.loads(orjson.dumps(ours))
    broken["metadata"]["stepstream"]["steps"][0]["step_index"] = -1
    mistyped = orjson.loads(orjson.dumps(ours))
    mistyped["metadata"]["stepstream"]["steps"][0]["group_id"] = 7
    unknown = orjson.loads(orjson.dumps(ours))
    unknown["metadata"]["stepstream"]["steps"][0]["no_such_field"] = 7
    later = orjson.loads(orjson.dumps(ours))
    later["metadata"]["stepstream"]["version"] = 2
    file = tmp_path / "f.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, [ours, broken, mistyped, unknown, later])))
    first, *others = read(file, "chat", ORIGIN, tenant="acme", agent="named")
    assert isinstance(first, Found)
    [step] = first.episode.steps
    assert (step["consent"], step["tenant"], step["agent"]) == ("analyse", "acme", "named")
    assert [(other.line, type(other)) for other in others] == [(line, Bad) for line in (2, 3, 4, 5)]
    reasons = [other.reason for other in others if isinstance(other, Bad)]
    told = zip(("negative", "group_id", "no_such_field", "version 2"), reasons, strict=True)
    assert all(part in reason for part, reason in told), reasons


def _sound() -> list[Episode]:
    [episode] = FORMATS["chat"].read(
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
        Origin(dataset="d", at_us=1_760_000_000_000_000, consent="analyse"),
    )
    return [episode]
