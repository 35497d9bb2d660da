"""Write and read episodes as Parquet: one row a step, with the column names of RLDS and D4RL.

`observation` and `action` are JSON texts. Token ids and logprobs are columns of lists. `stepstream` is the extension,
in the first row of each episode. Reading also accepts D4RL's flat files (`observations`, `actions`, `rewards`,
`terminals`, `timeouts`). Needs pyarrow (the extra `datasets`).
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
"""Rows of a row group: the largest number in memory."""
_D4RL = {"observations": "observation", "actions": "action", "rewards": "reward"}
_TOKEN_COLUMNS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
_JSON_COLUMNS = ("observation", "action")
_PLAIN_COLUMNS = ("reward", "discount", "is_first", "is_last", "is_terminal")


class ParquetFile:
    """A context manager that writes episodes to one file."""

    def __init__(self, path: Path) -> None:
        """Replace the file at `path`."""
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
        """Append an episode."""
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


def read_documents(path: Path) -> Iterator[FileLine]:
    """Yield the file's episodes as documents of RLDS, one in memory at a time."""
    import pyarrow.parquet

    number = 0
    try:
        for item in _episodes(path):
            number = item.line
            yield item
    except pyarrow.ArrowException as error:
        yield FileLine(number + 1, None, f"the rest of the file cannot be read as Parquet: {error}")


def _episodes(path: Path) -> Iterator[FileLine]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = []
    first_row, number = 1, 0
    with pyarrow.parquet.ParquetFile(path) as file:
        is_flat = "episode_id" not in file.schema_arrow.names
        for batch in file.iter_batches(batch_size=_ROWS):
            for row in batch.to_pylist():
                if not is_flat and rows and row["episode_id"] != rows[0]["episode_id"]:
                    yield _document(rows, first_row)
                    rows, first_row = [], number + 1
                rows.append(row)
                number += 1
                if is_flat and (row.get("terminals") or row.get("timeouts")):
                    yield _document(rows, first_row)
                    rows, first_row = [], number + 1
    if rows:
        yield _document(rows, first_row)


def _rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a document; token ids and logprobs move from the extension to their columns."""
    steps, extension = document["steps"], document[KEY]
    patches = [dict(patch) for patch in extension["steps"]]
    extension = {**extension, "steps": patches}
    tokens = [{name: patch.pop(name, None) for name in _TOKEN_COLUMNS} for patch in patches]
    for index, step in enumerate(steps):
        is_last_action = index == len(steps) - 2
        yield {
            "episode_id": document["episode_id"],
            **{name: orjson.dumps(step[name]).decode() for name in _JSON_COLUMNS},
            **{name: step[name] for name in _PLAIN_COLUMNS},
            "terminals": is_last_action and steps[-1]["is_terminal"],
            "timeouts": is_last_action and not steps[-1]["is_terminal"],
            **(tokens[index] if index < len(tokens) else {}),
            KEY: None if index else orjson.dumps(extension).decode(),
        }


def _document(rows: list[dict[str, Any]], first_row: int) -> FileLine:
    document: dict[str, Any] = {"episode_id": rows[0].get("episode_id", str(first_row)), "steps": []}
    for row in rows:
        step = {
            _D4RL.get(name, name): value
            for name, value in row.items()
            if name not in ("episode_id", KEY, *_TOKEN_COLUMNS)
        }
        terminal, timeout = step.pop("terminals", False), step.pop("timeouts", False)
        step.setdefault("is_terminal", bool(terminal))
        step.setdefault("is_last", bool(terminal or timeout) and "is_first" not in row and step.get("action") is None)
        step |= {name: _parse_json(step[name]) for name in _JSON_COLUMNS if name in step}
        document["steps"].append(step)
    text = rows[0].get(KEY)
    if text:
        extension = orjson.loads(text)
        for patch, row in zip(extension["steps"], rows, strict=False):
            patch.update({name: row[name] for name in _TOKEN_COLUMNS if row.get(name) is not None})
        document[KEY] = extension
    return FileLine(first_row, document)


def _parse_json(value: Any) -> Any:
    """Parse a text that is a JSON object or null; return other values unchanged."""
    if isinstance(value, str) and (value.startswith("{") or value == "null"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value
