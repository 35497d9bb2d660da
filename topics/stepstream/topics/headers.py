"""The five bytes before each body, by the schema it was written with, which may be older than this package."""

import logging
from collections.abc import Iterable

from stepstream.schemas import schema_text
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.codec import Codec, NotRegistered, RegistryUnavailable
from stepstream.topics.segment import Record

log = logging.getLogger(__name__)


class Headers:
    """What the registry has said. `look_up` and `ours` block, in one thread; the rest never does."""

    def __init__(self, codec: Codec) -> None:
        self.schemas = {topic.name: schema_text(topic.schema) for topic in TOPICS.values()}
        """Text of this package's schema of each topic."""
        self._codec = codec
        self._known: dict[tuple[str, str], bytes] = {}
        self._foreign: set[tuple[str, str]] = set()
        self._told = False

    def value(self, record: Record) -> bytes | None:
        """The record's value on the wire; None: the registry has not said yet, or it must be translated first."""
        header = self._known.get((record.topic, record.schema))
        return None if header is None else header + record.body

    def ours(self, record: Record) -> Record:
        """The record in this package's schema, where the registry does not hold its own; blocks for a person's key.

        Raises:
            CodecError: its body cannot be read.
            KeysUnavailable: it is sealed and its key cannot be had now.
        """
        written = record.topic, record.schema
        if written not in self._foreign:
            return record
        return record._replace(schema=self.schemas[record.topic], body=self._codec.translate(*written, record.body))

    def look_up(self, records: Iterable[Record]) -> bool:
        """Asks the registry for what these need and is not known yet; False: it does not say.

        A schema that nobody has registered, since the registry was away for as long as it was in use, is replaced by
        this package's.
        """
        for topic, schema in {(record.topic, record.schema) for record in records} - self._known.keys() - self._foreign:
            ours = schema == self.schemas[topic]
            try:
                try:
                    self._known[topic, schema] = self._codec.header(topic, None if ours else schema)
                except NotRegistered:
                    if ours:
                        raise
                    self._known[topic, self.schemas[topic]] = self._codec.header(topic)
                    self._foreign.add((topic, schema))
            except RegistryUnavailable as error:
                if not self._told:
                    log.warning("events wait: %s", error)
                    self._told = True
                return False
        if self._told:
            log.info("the schema registry answers: events are delivered again")
            self._told = False
        return True
