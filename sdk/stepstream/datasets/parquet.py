"""Episodes as Parquet: one row a step, in RLDS's names and D4RL's. Needs pyarrow (the extra `datasets`).

What is said is JSON text in `observation` and `action`; token ids and logprobs are columns of lists; `stepstream` holds
the extension, once an episode, in its first row. D4RL's flat files (`observations`, `actions`, `rewards`, `terminals`,
`timeouts`) are read too.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from stepstream.datasets import rlds
from stepstream.datasets.episode import Episode
from stepstream.datasets.extension import KEY
from stepstream.datasets.files import FileLine

_ROWS = 2000
"""Rows of a group: what is in memory at once."""
_D4RL = {"observations": "observation", "actions": "action", "rewards": "reward"}
_TOKENS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
_BESIDE = ("episode_id", KEY, *_TOKENS)
_SAID = ("observation", "action")
_PLAIN = ("reward", "discount", "is_first", "is_last", "is_terminal")


class ParquetFile:
    """Writes episodes to one file; a context manager."""

    def __init__(self, path: Path) -> None:
        """Replaces what is at `path`."""
        import pyarrow
        import pyarrow.parquet

        ids, flag = pyarrow.list_(pyarrow.int32()), pyarrow.bool_()
        self._schema = pyarrow.schema(
            [
                ("episode_id", pyarrow.string()),
                ("observation", pyarrow.string()),
                ("action", pyarrow.string()),
                ("reward", pyarrow.float64()),
                ("discount", pyarrow.float64()),
                *((name, flag) for name in ("is_first", "is_last", "is_terminal", "terminals", "timeouts")),
                ("prompt_token_ids", ids),
                ("response_token_ids", ids),
                ("response_logprobs", pyarrow.list_(pyarrow.float32())),
                (KEY, pyarrow.string()),
            ]
        )
        self._table = pyarrow.Table
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []

    def write(self, episode: Episode) -> None:
        """Adds an episode."""
        [document] = rlds.write(episode)
        self._rows += _rows(document)
        if len(self._rows) >= _ROWS:
            self._flush()

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def documents(path: Path) -> Iterator[FileLine]:
    """The file's episodes as documents of RLDS, one in memory at a time."""
    import pyarrow.parquet

    number = 0
    try:
        for place in _episodes(path):
            number = place.line
            yield place
    except pyarrow.ArrowException as error:
        yield FileLine(number + 1, None, f"from here on the file cannot be read as Parquet: {error}")


def _episodes(path: Path) -> Iterator[FileLine]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    begun, number = 1, 0
    with pyarrow.parquet.ParquetFile(path) as file:
        flat = "episode_id" not in file.schema_arrow.names
        for batch in file.iter_batches(batch_size=_ROWS):
            for row in batch.to_pylist():
                if not flat and rows and row["episode_id"] != rows[0]["episode_id"]:
                    yield _document(rows, begun)
                    rows, begun = [], number + 1
                rows.append(row)
                number += 1
                if flat and (row.get("terminals") or row.get("timeouts")):
                    yield _document(rows, begun)
                    rows, begun = [], number + 1
    if rows:
        yield _document(rows, begun)


def _rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a document; tokens move from the extension into columns of their own."""
    steps, told = document["steps"], document[KEY]
    patches = [dict(patch) for patch in told["steps"]]
    told = {**told, "steps": patches}
    tokens = [{name: patch.pop(name, None) for name in _TOKENS} for patch in patches]
    for place, step in enumerate(steps):
        last_action = place == len(steps) - 2
        yield {
            "episode_id": document["episode_id"],
            **{name: orjson.dumps(step[name]).decode() for name in _SAID},
            **{name: step[name] for name in _PLAIN},
            "terminals": last_action and steps[-1]["is_terminal"],
            "timeouts": last_action and not steps[-1]["is_terminal"],
            **(tokens[place] if place < len(tokens) else {}),
            KEY: None if place else orjson.dumps(told).decode(),
        }


def _document(rows: list[dict[str, Any]], begun: int) -> FileLine:
    document: dict[str, Any] = {"episode_id": rows[0].get("episode_id", str(begun)), "steps": []}
    for row in rows:
        step = {
            _D4RL.get(name, name): value for name, value in row.items() if name not in ("episode_id", KEY, *_TOKENS)
        }
        terminal, timeout = step.pop("terminals", False), step.pop("timeouts", False)
        step.setdefault("is_terminal", bool(terminal))
        step.setdefault("is_last", bool(terminal or timeout) and "is_first" not in row and step.get("action") is None)
        step |= {name: _said(step[name]) for name in _SAID if name in step}
        document["steps"].append(step)
    told = rows[0].get(KEY)
    if told:
        extension = orjson.loads(told)
        for patch, row in zip(extension["steps"], rows, strict=False):
            patch.update({name: row[name] for name in _TOKENS if row.get(name) is not None})
        document[KEY] = extension
    return FileLine(begun, document)


def _said(value: Any) -> Any:
    """A text that is JSON of an object or nothing as that; everything else as it is."""
    if isinstance(value, str) and (value.startswith("{") or value == "null"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value
