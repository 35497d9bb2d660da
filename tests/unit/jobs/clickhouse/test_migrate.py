"""Migrations: their statements can be repeated."""

import re

from stepstream.jobs.clickhouse.migrate import migrations

_REPEATABLE = (
    r"CREATE TABLE IF NOT EXISTS |CREATE OR REPLACE VIEW |ALTER TABLE \w+ (ADD COLUMN IF NOT EXISTS|MODIFY SETTING) "
)


def test_statements_are_split_and_repeatable() -> None:
    for migration in migrations():
        for statement in migration.statements():
            words = re.sub(r"--[^\n]*\n", "", statement).strip()
            assert re.match(_REPEATABLE, words), words[:60]
