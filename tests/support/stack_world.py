"""Send events to a running stack, and read its log, tables and commands."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import orjson
from clickhouse_connect.driver.client import Client
from command_line import stepstream
from log_reading import read_to_end
from stream_records import make_ending, make_steps
from waiting import wait_for_value

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.clickhouse.connection import connect
from stepstream.topics.consumer import Event
from stepstream.topics.producer import EventProducer


class World:
    """Client of one stack: producer, reader, tables and command line. Close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codec = sealing_codec(settings)
        self.producer = EventProducer(settings.kafka, self.codec, "test", linger_ms=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.codec.close()
        if "store" in vars(self):
            self.store.close_connections()
            self.store.close()

    @cached_property
    def store(self) -> Client:
        """Connection to the tables; only a stack with the store has them."""
        return connect(self.settings, database=self.settings.clickhouse.database)

    def send(self, topic: str, *events: Any, key: str | None = None) -> None:
        """Queue events of a topic; the key is the trajectory unless `key` is given."""
        for event in events:
            self.producer.send(topic, event["trajectory_id"] if key is None else key, event)

    def send_and_flush(self, topic: str, *events: Any, key: str | None = None) -> None:
        """Queue events as `send` does, and wait until the log has all queued events."""
        self.send(topic, *events, key=key)
        self.producer.flush()

    def send_trajectories(self, *names: str, steps: int = 2, **fields: Any) -> None:
        """Send complete successful trajectories; `fields` go into each step, `tenant` also into the feedback."""
        tenant = {name: fields[name] for name in ("tenant",) if name in fields}
        for name in names:
            self.send("steps", *make_steps(name, steps, **fields))
            self.send("feedback", make_ending(name, steps, **tenant))
        self.producer.flush()

    def read(self, topic: str, start: Mapping[tuple[str, int], int] | None = None) -> list[Event]:
        """Return the events of a topic, all or those from the offsets `start` by (topic, partition)."""
        return read_to_end(self.settings, self.codec, topic, start=start)

    def records(self, topic: str, start: Mapping[tuple[str, int], int] | None = None) -> list[Any]:
        """Return the records of the events of a topic, all or those from the offsets `start`."""
        return [event.record for event in self.read(topic, start)]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in self.store.query(query).result_rows]

    def value(self, query: str) -> Any:
        """Return the first value of a query."""
        return self.rows(query)[0][0]

    def wait_for_rows(self, query: str, expected: list[tuple[Any, ...]]) -> None:
        """Wait until a query returns these rows; each table gets its rows in its own insert."""
        wait_for_value(lambda: self.rows(query), expected)

    def wait_for_value(self, query: str, expected: Any) -> None:
        """Wait until a query returns this one value."""
        wait_for_value(lambda: self.value(query), expected)

    def wait_for_trajectory(self, name: str, **expected: Any) -> None:
        """Wait until a trajectory's newest row has these column values."""
        query = f"SELECT {', '.join(expected)} FROM trajectories FINAL WHERE trajectory_id = '{name}'"
        self.wait_for_rows(query, [tuple(expected.values())])

    def run_command(self, *words: str, fails: bool = False) -> str:
        """Run `stepstream WORDS`; return its output, or its error output if it must fail."""
        result = stepstream(self.settings, *words)
        assert (result.status != 0) == fails, result.stderr + result.stdout
        return result.stderr if fails else result.stdout

    def run_json(self, *words: str) -> Any:
        """Run `stepstream WORDS --json`; return its parsed output."""
        return orjson.loads(self.run_command(*words, "--json"))
