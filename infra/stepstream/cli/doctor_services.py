"""The doctor's look at broker, registry and store: do they answer, and have they what this version expects?

Each check answers with one finding, never raises for a part that is down, and takes seconds at most.

What `stepstream doctor` found.
"""

import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Literal
from urllib.parse import quote

from stepstream.config import ClickHouseSettings, Settings, SettingsError, masked
from stepstream.embedded.addresses import VARIABLES


@dataclass(frozen=True)
class Finding:
    """One fact. `fault`: something that was asked for does not work; `warning`: it may be missed later."""

    name: str
    state: Literal["ok", "warning", "fault"]
    detail: str
    fix: str = ""


_TIMEOUT_S = 3.0
_APPLY = "run `stepstream topics apply`"
_OURS = "FROM system.tables WHERE database = "
_MIGRATE = "run `stepstream store migrate`"


def broker(settings: Settings) -> Finding:
    """Does a broker answer, and does it have our topics as the catalogue declares them?"""
    from confluent_kafka import KafkaException

    from stepstream.embedded.ready import SILENT
    from stepstream.topics.admin import differing
    from stepstream.topics.catalogue import TOPICS
    from stepstream.topics.client import admin_client

    address = settings.kafka.bootstrap
    try:
        client = admin_client(settings.kafka, SILENT)
        there = client.list_topics(timeout=_TIMEOUT_S).topics
        odd = [
            f"{name} has {key} other than {value}"
            for name, wrong in differing(client, sorted(set(TOPICS) & set(there)), _TIMEOUT_S).items()
            for key, value in wrong.items()
        ]
    except SettingsError as error:
        return Finding("broker", "fault", str(error), "mend that setting")
    except KafkaException as error:
        return _unreachable("broker", settings, address, error.args[0].str())
    if missing := sorted(set(TOPICS) - set(there)):
        return Finding("broker", "fault", f"{address} lacks {', '.join(missing)}", _APPLY)
    odd += [f"{n} has too few partitions" for n, topic in TOPICS.items() if len(there[n].partitions) < topic.partitions]
    if odd:
        return Finding("broker", "fault", f"{address}: {'; '.join(odd)}", _APPLY)
    return Finding("broker", "ok", f"{address}, all {len(TOPICS)} topics")


def registry(settings: Settings) -> Finding:
    """Does the schema registry answer, and does it have our schemas?"""
    from stepstream.topics.admin import is_registered
    from stepstream.topics.catalogue import TOPICS
    from stepstream.topics.registry_client import RegistryClient, RegistryRefused

    url = masked(settings.schema_registry.url)
    try:
        client = RegistryClient(settings.schema_registry.model_copy(update={"timeout_s": _TIMEOUT_S}), attempts=1)
        there = set(client.subjects())
        missing = sorted({topic.subject for topic in TOPICS.values()} - there)
        other = [] if missing else [topic.subject for topic in TOPICS.values() if not is_registered(client, topic)]
    except SettingsError as error:
        return Finding("registry", "fault", str(error), "mend that setting")
    except (OSError, HTTPException, ValueError, RegistryRefused) as error:
        return _unreachable("registry", settings, url, _reason(error))
    if missing:
        return Finding("registry", "fault", f"{url} lacks {', '.join(missing)}", _APPLY)
    if other:
        return Finding("registry", "fault", f"{url} has other schemas than this version: {', '.join(other)}", _APPLY)
    return Finding("registry", "ok", f"{url}, {len(there)} subjects")


def store(settings: Settings) -> Finding:
    """Does the analytics store answer, and does it have the tables that this version writes?"""
    house = settings.clickhouse
    url = masked(house.url)
    try:
        version = _ask(house, "SELECT version()")
        there = _ask(house, f"SELECT count(), has(groupArray(name), 'schema_migrations') {_OURS}'{house.database}'")
        tables, ours = map(int, there.split())
        known = f"SELECT name FROM `{house.database}`.schema_migrations"
        missing = sorted(_migrations() - set(_ask(house, known).split())) if ours else []
    except (OSError, HTTPException, ValueError) as error:
        return _unreachable("store", settings, url, _reason(error))
    if not ours:
        return Finding("store", "fault", f"{url} has no tables of ours", _MIGRATE)
    if missing:
        return Finding("store", "fault", f"{url} has older tables: it lacks {', '.join(missing)}", _MIGRATE)
    return Finding("store", "ok", f"{url}, engine {version}, {tables} tables and views")


def _migrations() -> set[str]:
    """Names of the migrations of this version; none where the jobs' packages are not installed."""
    try:
        from stepstream.jobs.clickhouse.migrate import migrations
    except ModuleNotFoundError:
        return set()
    return {migration.name for migration in migrations()}


def _ask(house: ClickHouseSettings, query: str) -> str:
    password = house.password.get_secret_value()
    sent = {"X-ClickHouse-User": house.user, "X-ClickHouse-Key": password}
    request = urllib.request.Request(
        f"{house.url}/?query={quote(query + ' FORMAT TSV', safe='()')}",
        headers={name: text for name, text in sent.items() if text},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        return bytes(response.read()).decode().strip()


def _unreachable(part: str, settings: Settings, address: str, reason: str) -> Finding:
    name = VARIABLES[part]
    fix = (
        f"start it there, or set {name}"
        if part in settings.stack.external
        else f"run `stepstream up`, or set {name} to one that runs elsewhere"
    )
    return Finding(part, "fault", f"{address} does not answer ({reason})", fix)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error))
