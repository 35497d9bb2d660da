"""Check that broker, registry and store answer and hold the topics, schemas and tables of this version.

Each check returns one finding and takes at most a few seconds. It does not raise if the part is down.
"""

import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Literal
from urllib.parse import quote

from stepstream.config import Settings, SettingsError, masked
from stepstream.config.secrets import store_credentials
from stepstream.core.no_redirects import open_request
from stepstream.embedded.addresses import VARIABLES
from stepstream.embedded.ready import store_context

_TIMEOUT_S = 3.0
_APPLY = "run `stepstream topics apply`"
_FROM_DATABASE = "FROM system.tables WHERE database = "
_MIGRATE = "run `stepstream store migrate`"


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    name: str
    state: Literal["ok", "warning", "fault"]
    """`fault`: a configured part does not work; `warning`: something may fail later."""
    detail: str
    """The fact, with its values."""
    fix: str = ""
    """Remedy; empty: none is needed."""


def broker(settings: Settings) -> Finding:
    """Check that a broker answers and has the catalogue's topics, with their settings and partitions."""
    from confluent_kafka import KafkaException

    from stepstream.core.process import Fatal
    from stepstream.embedded.ready import SILENT
    from stepstream.topics.admin import existing_topics
    from stepstream.topics.catalogue import TOPICS
    from stepstream.topics.client import admin_client
    from stepstream.topics.owned_topics import read_owned
    from stepstream.topics.topic_plan import (
        OWNED_TOPICS,
        PartitionsDiffer,
        check_foreign,
        check_partitions,
        plan_topics,
    )

    address, prefix = settings.kafka.bootstrap, settings.kafka.prefix
    try:
        existing = existing_topics(admin_client(settings.kafka, SILENT), _TIMEOUT_S)
        if missing := [prefix + name for name in (*TOPICS, OWNED_TOPICS) if name not in existing]:
            return Finding("broker", "fault", f"{address} lacks {', '.join(missing)}", _APPLY)
        plans = plan_topics(settings, existing, read_owned(settings.kafka, _TIMEOUT_S))
        check_foreign(plans, prefix)
        check_partitions({name: topic.partitions for name, topic in existing.items()}, settings)
    except SettingsError as error:
        return Finding("broker", "fault", str(error), "correct that setting")
    except KafkaException as error:
        return _unreachable("broker", settings, address, error.args[0].str())
    except PartitionsDiffer as error:
        return Finding("broker", "fault", f"{address}: {error.fact}", error.remedy)
    except Fatal as error:
        return Finding("broker", "fault", f"{address}: {error}", "see `stepstream topics plan`")
    differences = [
        f"{prefix}{plan.name} has {key} other than {value}" for plan in plans for key, value in plan.changes.items()
    ]
    if differences:
        return Finding("broker", "fault", f"{address}: {'; '.join(differences)}", _APPLY)
    if kept := [f"{prefix}{plan.name} {plan.reason}" for plan in plans if plan.reason]:
        return Finding("broker", "warning", f"{address}: {'; '.join(kept)}", "see `stepstream topics plan`")
    named = f" with prefix {prefix}" if prefix else ""
    return Finding("broker", "ok", f"{address}, all {len(TOPICS)} topics{named}")


def registry(settings: Settings) -> Finding:
    """Check that the schema registry answers and has the schemas of this version."""
    from stepstream.topics.admin import is_registered
    from stepstream.topics.catalogue import TOPICS
    from stepstream.topics.registry_client import RegistryClient, RegistryRefused

    url = masked(settings.schema_registry.url)
    try:
        client = RegistryClient(settings.schema_registry.model_copy(update={"timeout_s": _TIMEOUT_S}), attempts=1)
        existing = set(client.subjects())
        prefix = settings.kafka.prefix
        missing = sorted({prefix + topic.subject for topic in TOPICS.values()} - existing)
        other = [t.subject for t in TOPICS.values() if not missing and not is_registered(client, t, prefix)]
    except SettingsError as error:
        return Finding("registry", "fault", str(error), "correct that setting")
    except (OSError, ValueError, RegistryRefused) as error:
        return _unreachable("registry", settings, url, _reason(error))
    if missing:
        return Finding("registry", "fault", f"{url} lacks {', '.join(missing)}", _APPLY)
    if other:
        return Finding("registry", "fault", f"{url} has other schemas than this version: {', '.join(other)}", _APPLY)
    return Finding("registry", "ok", f"{url}, {len(existing)} subjects")


def store(settings: Settings) -> Finding:
    """Check that the store answers and has the tables of this version."""
    clickhouse = settings.clickhouse
    url, database = masked(clickhouse.url), clickhouse.database
    try:
        version = _query(settings, "SELECT version()")
        counts = f"SELECT count(), has(groupArray(name), 'schema_migrations') {_FROM_DATABASE}'{database}'"
        tables, is_migrated = map(int, _query(settings, counts).split())
        applied = f"SELECT name FROM `{database}`.schema_migrations"
        missing = sorted(_migrations() - set(_query(settings, applied).split())) if is_migrated else []
    except SettingsError as error:
        return Finding("store", "fault", str(error), "correct that setting")
    except (OSError, HTTPException, ValueError) as error:
        return _unreachable("store", settings, url, _reason(error))
    if not is_migrated:
        return Finding("store", "fault", f"{url} has no Stepstream tables in database {database}", _MIGRATE)
    if missing:
        return Finding("store", "fault", f"{url} has older tables: it lacks {', '.join(missing)}", _MIGRATE)
    return Finding("store", "ok", f"{url}, engine {version}, {tables} tables and views")


def _migrations() -> set[str]:
    """Return the names of this version's migrations; none if the jobs' packages are not installed."""
    try:
        from stepstream.jobs.clickhouse.migrate import migrations
    except ModuleNotFoundError:
        return set()
    return {migration.name for migration in migrations()}


def _query(settings: Settings, query: str) -> str:
    user, password = store_credentials(settings, reads_only=True)
    clickhouse = settings.clickhouse
    token = clickhouse.access_token.get_secret_value()
    credentials = (
        {"Authorization": f"Bearer {token}"}
        if token
        else {
            "X-ClickHouse-User": user,
            "X-ClickHouse-Key": password,
            "X-ClickHouse-SSL-Certificate-Auth": "on" if clickhouse.certificate_location and not password else "",
        }
    )
    request = urllib.request.Request(
        f"{settings.clickhouse.url}/?query={quote(query + ' FORMAT TSV', safe='()')}",
        headers={name: value for name, value in credentials.items() if value},
    )
    with open_request(request, _TIMEOUT_S, store_context(clickhouse)) as response:
        return response.read().decode().strip()


def _unreachable(part: str, settings: Settings, address: str, reason: str) -> Finding:
    name = VARIABLES[part]
    fix = (
        f"start it there, or set {name}"
        if part in settings.stack.external
        else f"run `stepstream up`, or set {name} to the address of an external one"
    )
    return Finding(part, "fault", f"{address} does not answer ({reason})", fix)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error))
