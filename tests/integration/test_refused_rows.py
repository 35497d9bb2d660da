"""Insert into a real store whose tables differ: refusals are reported once, and mend with the table."""

from collections.abc import Callable, Iterator

import pytest
from clickhouse_connect.driver.client import Client
from sample_records import step

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.columns import Row
from stepstream.jobs.clickhouse.insert import Inserter
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rows import rows

DATABASE = "refused"


@pytest.fixture(scope="module")
def settings(own_database: Callable[[str], Settings]) -> Settings:
    made = own_database(DATABASE)
    migrate(made)
    return made


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with connection.connect(settings, database=DATABASE) as client:
        yield client


@pytest.fixture
def inserter(settings: Settings) -> Iterator[Inserter]:
    def give_up() -> bool:
        pytest.fail("the insert is retried")

    made = Inserter(settings, give_up)
    yield made
    made.close()


def step_rows(*agents: str) -> list[Row]:
    made = [rows("governed-steps", step(f"t{n}", agent=agent)) for n, agent in enumerate(agents)]
    return [row for of_step in made for table, row in of_step if table == "steps"]


def test_an_unknown_column_refuses_all_rows_until_the_table_has_it(client: Client, inserter: Inserter) -> None:
    batch = step_rows("a", "b")
    assert inserter.insert("steps", batch) == {}
    client.command("ALTER TABLE steps RENAME COLUMN agent TO elsewhere")
    for _ in range(2):  # with the cached columns, and without
        refused = inserter.insert("steps", batch)
        assert sorted(refused) == [0, 1]
        assert "stepstream store migrate" in refused[0]
    client.command("ALTER TABLE steps RENAME COLUMN elsewhere TO agent")
    assert inserter.insert("steps", batch) == {}


def test_a_missing_table_refuses_all_rows(client: Client, inserter: Inserter) -> None:
    client.command("RENAME TABLE steps TO parked")
    assert "UNKNOWN_TABLE (60)" in inserter.insert("steps", step_rows("a"))[0]
    assert "UNKNOWN_TABLE" in str(inserter.delete("steps", "agent", "a"))
    client.command("RENAME TABLE parked TO steps")
    assert inserter.insert("steps", step_rows("a")) == {}


def test_only_the_rows_whose_value_has_the_wrong_type_are_refused(client: Client, inserter: Inserter) -> None:
    assert inserter.insert("steps", step_rows("a")) == {}
    client.command("TRUNCATE TABLE steps")
    client.command("ALTER TABLE steps MODIFY COLUMN environment UInt8")
    [before] = client.query("SELECT count() FROM steps").result_rows
    refused = inserter.insert("steps", step_rows("a", "b"))
    assert list(refused) == [0, 1]
    assert "does not fit" in refused[0] or "TYPE_MISMATCH" in refused[0]
    assert client.query("SELECT count() FROM steps").result_rows == [before]
