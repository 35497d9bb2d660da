"""What tests say to a running stack, and what its log and its tables come to say."""

from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import orjson
from clickhouse_connect.driver.client import Client
from command_line import stepstream
from stream_records import make_ending, make_steps
from waiting import comes_to

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.clickhouse.connection import connect
from stepstream.topics.consumer import Event, EventConsumer
from stepstream.topics.producer import EventProducer


class World(AbstractContextManager["World"]):
    """One stack as a test sees it; close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Speaks to the stack with these settings."""
        self.settings = settings
        self.codec = sealing_codec(settings)
        self.producer = EventProducer(settings.kafka, self.codec, "test", linger_ms=0)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the connections."""
        self.codec.close()
        if "store" in vars(self):
            self.store.close_connections()
            self.store.close()

    @cached_property
    def store(self) -> Client:
        """The tables; not every stack has them."""
        return connect(self.settings.clickhouse, database=self.settings.clickhouse.database)

    def send(self, topic: str, *events: Any, key: str | None = None) -> None:
        """Queues events of a topic, by their trajectory unless another key is given."""
        for event in events:
            self.producer.send(topic, event["trajectory_id"] if key is None else key, event)

    def put(self, topic: str, *events: Any, key: str | None = None) -> None:
        """As `send`, and waits until all that was queued is in the log."""
        self.send(topic, *events, key=key)
        self.producer.flush()

    def tell(self, *names: str, steps: int = 2, **fields: Any) -> None:
        """Whole successful trajectories; `fields` go into each of their steps, the tenant into their feedback too."""
        whose = {name: fields[name] for name in ("tenant",) if name in fields}
        for name in names:
            self.send("steps", *make_steps(name, steps, **fields))
            self.send("feedback", make_ending(name, steps, **whose))
        self.producer.flush()

    def read(self, topic: str) -> list[Event]:
        """All of a topic so far."""
        events: list[Event] = []
        with EventConsumer(self.settings.kafka, self.codec) as consumer:
            consumer.follow([topic])
            while not consumer.is_caught_up():
                events += consumer.poll(1000, 0.1)
        return events

    def records(self, topic: str) -> list[Any]:
        """The records of a topic so far."""
        return [event.record for event in self.read(topic)]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What the tables answer."""
        return [tuple(row) for row in self.store.query(query).result_rows]

    def one(self, query: str) -> Any:
        """The one value that the tables answer."""
        return self.rows(query)[0][0]

    def shows(self, query: str, expected: list[tuple[Any, ...]]) -> None:
        """Waits until the tables answer with these rows: each table gets its rows in an insert of its own."""
        comes_to(lambda: self.rows(query), expected)

    def counts(self, query: str, expected: Any) -> None:
        """Waits until the tables answer with this one value."""
        comes_to(lambda: self.one(query), expected)

    def becomes(self, name: str, **expected: Any) -> None:
        """Waits until a trajectory's newest row has these columns."""
        query = f"SELECT {', '.join(expected)} FROM trajectories FINAL WHERE trajectory_id = '{name}'"
        self.shows(query, [tuple(expected.values())])

    def command(self, *words: str, fails: bool = False) -> str:
        """What `stepstream WORDS` prints; where it is to fail, what it complains of."""
        done = stepstream(self.settings, *words)
        assert (done.status != 0) == fails, done.stderr + done.stdout
        return done.stderr if fails else done.stdout

    def facts(self, *words: str) -> Any:
        """What `stepstream WORDS --json` tells."""
        return orjson.loads(self.command(*words, "--json"))
