"""Configure the engine's own access control: what statements may reach, which settings they may change, and limits.

chDB honours a server's `users.xml`: grants, constraints of settings, and the folders of the server's configuration. The
user of the embedded engine gets no grant of a source (files, URLs, other databases), of users, backups or `SYSTEM`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import chdb

_GRANTS = (
    "SHOW DATABASES, SHOW TABLES, SHOW COLUMNS, SELECT, INSERT, ALTER UPDATE, ALTER DELETE, ALTER COLUMN, ALTER INDEX, "
    "ALTER PROJECTION, ALTER CONSTRAINT, ALTER ORDER BY, ALTER TTL, ALTER SETTINGS, ALTER VIEW, CREATE DATABASE, "
    "CREATE TABLE, CREATE VIEW, CREATE TEMPORARY TABLE, DROP DATABASE, DROP TABLE, DROP VIEW, TRUNCATE, OPTIMIZE, "
    "SYSTEM MERGES"
)
# The pool of merges and mutations sleeps up to this beside a fixed time when it finds nothing to do. With ClickHouse's
# default of a second, the hiding of rows in some hundred parts takes three times as long, at the same CPU time.
_POOL = (
    "<background_processing_pool_task_sleep_seconds_when_no_work_random_part>0.1"
    "</background_processing_pool_task_sleep_seconds_when_no_work_random_part>"
)
# ClickHouse compiles an expression at its third use, and that query waits for 50 to 300 ms. To derive comparisons from
# others takes a tenth of the time in which a view is analyzed, and makes no view faster.
_COSTLY = (
    "compile_expressions",
    "compile_aggregate_expressions",
    "compile_sort_description",
    "optimize_and_compare_chain",
)
# A text can name a file, an address or an expression. Statements may change only these settings that hold one.
_FREE_TEXTS = frozenset(
    {"bool_false_representation", "bool_true_representation", "count_distinct_implementation", "database"}
    | {"log_comment"}
    | {"format_csv_null_representation", "format_tsv_null_representation", "insert_deduplication_token"}
    | {"format_custom_field_delimiter", "format_custom_result_after_delimiter", "query_cache_tag"}
    | {"format_custom_result_before_delimiter", "format_custom_row_after_delimiter"}
    | {"format_custom_row_before_delimiter", "format_custom_row_between_delimiter"}
    | {"output_format_avro_codec", "output_format_pretty_grid_charset", "force_optimize_projection_name"}
)
_TEXTS = "SELECT name FROM system.settings WHERE type IN ('String', 'Map', 'URI', 'Dialect')"
_TABLE_TEXTS = "SELECT name FROM system.merge_tree_settings WHERE name IN ('disk', 'storage_policy')"
# Expressions in VALUES would run without inspection; without the analyzer, `x IN format(…)` calls a table function.
# Without its mask, a query would return the rows of erased persons that wait for the rewriting of their parts.
_FIXED = {
    "apply_deleted_mask": 1,
    "input_format_values_interpret_expressions": 0,
    "input_format_values_deduce_templates_of_expressions": 0,
    "enable_analyzer": 1,
}


@dataclass(frozen=True)
class Limits:
    """Limits of one statement."""

    seconds: float
    memory_bytes: int
    result_bytes: int


def write_configuration(folder: Path, limits: Limits) -> Path:
    """Write the engine's configuration into `folder`; return its main file.

    Must run before the engine opens a data folder: a process has one engine at a time.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    users, main = folder / "users.xml", folder / "config.xml"
    users.write_text(_users(limits, [*_fixed_texts(), *_FIXED]))
    nothing = escape(str(folder / "empty"))
    main.write_text(
        f"<clickhouse><users_config>{escape(str(users))}</users_config>"
        f"<user_files_path>{nothing}/</user_files_path><user_scripts_path>{nothing}/</user_scripts_path>"
        f"<format_schema_path>{nothing}/</format_schema_path>{_POOL}</clickhouse>\n"
    )
    return main


def _fixed_texts() -> list[str]:
    engine = chdb.connect(":memory:")
    try:
        texts = engine.query(_TEXTS, "TSV").bytes().decode().split()
        tables = engine.query(_TABLE_TEXTS, "TSV").bytes().decode().split()
    finally:
        engine.close()
    return [*(name for name in texts if name not in _FREE_TEXTS), *(f"merge_tree_{name}" for name in tables)]


def _users(limits: Limits, fixed: Iterable[str]) -> str:
    # All versions of a row of a fact table are in one partition: FINAL need not merge several.
    defaults = {"do_not_merge_across_partitions_select_final": 1, **dict.fromkeys(_COSTLY, 0)}
    bounds = {
        "max_execution_time": max(1, round(limits.seconds)),
        "max_memory_usage": limits.memory_bytes,
        "max_result_bytes": limits.result_bytes,
    }
    values = "".join(f"<{name}>{value}</{name}>" for name, value in (bounds | _FIXED | defaults).items())
    # Zero would mean no limit.
    ranges = "".join(f"<{name}><min>1</min><max>{value}</max></{name}>" for name, value in bounds.items())
    constants = "".join(f"<{name}><const/></{name}>" for name in fixed)
    return (
        f"<clickhouse><profiles><default>{values}<constraints>{ranges}{constants}</constraints></default></profiles>"
        "<quotas><default/></quotas><users><default><password/><networks><ip>::/0</ip></networks>"
        "<profile>default</profile><quota>default</quota>"
        f"<grants><query>GRANT {_GRANTS} ON *.*</query></grants></default></users></clickhouse>\n"
    )
