"""Keep the index of the log by owner in the table `person_index`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from clickhouse_connect.driver.client import Client
from confluent_kafka import TopicCollection

from stepstream.config import Settings
from stepstream.jobs.erasure.owner_hashes import SubjectOf, hash_basis
from stepstream.jobs.erasure.selection import IndexRow, Match, Place
from stepstream.topics.client import admin_client

_OWNERS_AT_A_TIME = 2000
_CALL_S = 20.0
_COLUMNS = ("topic", "partition", "basis", "first_offset", "end_offset", "offsets", "owners")
_VALID = "basis IN {bases:Array(UInt64)}"


class PersonIndexTable:
    """`PersonIndex` in ClickHouse. A row is valid while its topic and the master key are those of its writer."""

    def __init__(self, client: Client, bases: Mapping[str, int]) -> None:
        """Use a table.

        Args:
            client: client of a database with the table.
            bases: result of `read_bases`.
        """
        self._client, self._bases = client, bases
        self._present = sorted(bases.values())

    def covered(self) -> Iterable[Match]:
        """As `PersonIndex.covered`."""
        return self._matches("[]", {})

    def find(self, owners: Collection[int]) -> Iterator[list[Match]]:
        """As `PersonIndex.find`. Ranges and offsets are read together, so that a lagging replica does not matter."""
        offsets = "arrayFilter((place, owner) -> owner IN {owners:Array(UInt64)}, offsets, owners)"
        iterator = iter(owners)
        while chunk := list(islice(iterator, _OWNERS_AT_A_TIME)):
            yield self._matches(offsets, {"owners": chunk})

    def add(self, row: IndexRow) -> None:
        """As `PersonIndex.add`."""
        if (basis := self._bases.get(row.topic)) is not None:
            values = (row.topic, row.partition, basis, row.first, row.end, row.offsets, row.owners)
            self._client.insert("person_index", [values], column_names=_COLUMNS)

    def forget(self, place: Place, until: int) -> None:
        """As `PersonIndex.forget`."""
        topic, partition = place
        self._client.command(
            "ALTER TABLE person_index DELETE WHERE topic = {topic:String} AND partition = {partition:UInt32} "
            f"AND (end_offset <= {{until:Int64}} OR NOT {_VALID})",
            {"topic": topic, "partition": partition, "until": until, "bases": self._present},
            settings={"mutations_sync": 2},
        )

    def _matches(self, offsets: str, parameters: Mapping[str, object]) -> list[Match]:
        query = f"SELECT topic, partition, first_offset, end_offset, {offsets} FROM person_index WHERE {_VALID}"
        rows = self._client.query(query, {"bases": self._present, **parameters}).result_rows
        return [Match(*row) for row in rows]


def read_bases(settings: Settings, topics: Collection[str], subject_of: SubjectOf) -> dict[str, int]:
    """Return what the rows of each topic rest on, as a hash; a topic to which the broker gives no id is left out.

    Raises:
        KafkaException: a topic does not exist, or no broker answers.
    """
    admin = admin_client(settings.kafka)
    described = admin.describe_topics(TopicCollection(list(topics)), request_timeout=_CALL_S)
    ids = {topic: future.result().topic_id for topic, future in described.items()}
    return {
        topic: hash_basis(str(one), subject_of("", ""))
        for topic, one in ids.items()
        if one.get_most_significant_bits() or one.get_least_significant_bits()
    }
