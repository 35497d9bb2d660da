"""Migrations: their statements can be repeated."""

import re

from stepstream.jobs.clickhouse.migrate import migrations

_REPEATABLE = (
    r"CREATE (TABLE|MATERIALIZED VIEW) IF NOT EXISTS |CREATE OR REPLACE VIEW |DROP (TABLE|VIEW) IF EXISTS "
    r"|ALTER TABLE \w+ (ADD (COLUMN|INDEX) IF NOT EXISTS|COMMENT COLUMN|MODIFY SETTING|MATERIALIZE (COLUMN|INDEX)"
    r"|DROP COLUMN IF EXISTS) "
    # Into engines that remove copies; a table is renamed only while the new name is free (`migrate.py`).
    r"|INSERT INTO \w+ \(|RENAME TABLE (\w+) TO \6_\d{4}$"
)


def test_statements_are_split_and_repeatable() -> None:
    for migration in migrations():
        for statement in migration.statements():
            words = re.sub(r"--[^\n]*\n", "", statement).strip()
            assert re.match(_REPEATABLE, words), words[:60]
