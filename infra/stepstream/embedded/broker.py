"""The embedded broker: Apache Kafka itself, one KRaft node that is broker and controller.

`python -m stepstream.embedded.broker` writes the configuration, formats the data folder if it is new, and then
becomes the Java process (exec), so that signals reach Kafka itself: SIGTERM stops it in under a second.
Data is under DATA/kafka; kill -9 loses nothing acknowledged, and a restart takes as long as the dead broker's session
lasts (`broker.session_timeout_s`), since the controller lets the new one in only then.
"""

import base64
import os
import subprocess
import sys
import uuid
from pathlib import Path

from stepstream.config import Settings, SettingsError, load
from stepstream.embedded import jars, java
from stepstream.embedded.errors import StackError
from stepstream.embedded.ports import Port, check_free


def properties(settings: Settings) -> dict[str, str]:
    """The broker's configuration; one node, so every internal topic has one replica."""
    broker = settings.broker
    client = f"PLAINTEXT://{broker.host}:{broker.port}"
    controller = f"{broker.host}:{broker.controller_port}"
    session_ms = round(broker.session_timeout_s * 1000)
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{client},CONTROLLER://{controller}",
        "advertised.listeners": client,
        "log.dirs": str(data_folder(settings)),
        # Topics come from the catalogue; a typing error must not make one.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # The log is the truth: a consumer's place in it outlives a long holiday (minutes in a year).
        "offsets.retention.minutes": "525600",
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // 6),
        # A dead consumer's partitions move on in seconds, not in the 45 that suit a large cluster.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "250",
        "group.consumer.heartbeat.interval.ms": "1000",
        # Compaction: look often; its hash table (128 MB by default) must fit the small heap.
        "log.cleaner.backoff.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # Few clients: few threads.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
    }


def render(properties: dict[str, str]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def data_folder(settings: Settings) -> Path:
    """Where the log is: DATA/kafka."""
    return settings.paths.data.absolute() / "kafka"


def configuration_file(settings: Settings) -> Path:
    """The file that the running broker was configured with; written anew at each start."""
    return settings.paths.data.absolute() / "run" / "kafka.properties"


def ports(settings: Settings) -> list[Port]:
    """What the broker listens on."""
    broker = settings.broker
    return [
        Port(broker.host, broker.port, "broker", "STEPSTREAM_BROKER_PORT"),
        Port(broker.host, broker.controller_port, "broker", "STEPSTREAM_BROKER_CONTROLLER_PORT"),
    ]


def prepare(settings: Settings) -> list[str]:
    """Checks, writes the configuration, formats new data; returns the command that is the broker.

    Raises:
        StackError: jars that were not installed, a port that is taken, data that cannot be formatted.
    """
    if not jars.installed(java.home(settings)):
        raise StackError(f"Kafka is not installed in {java.home(settings)}: run `stepstream install`")
    check_free(ports(settings))
    data, file = data_folder(settings), configuration_file(settings)
    try:
        data.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        jars.write_atomically(file, render(properties(settings)).encode())
    except OSError as error:
        raise StackError(f"cannot keep the log in {data} ({error}): set STEPSTREAM_PATHS_DATA") from None
    if not (data / "meta.properties").exists():
        _format(settings, file)
    return java.command(settings, java.MAIN, str(file))


def _format(settings: Settings, file: Path) -> None:
    cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    tool = java.command(settings, java.STORAGE_TOOL, "format", "-t", cluster, "-c", str(file))
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise StackError(f"cannot format {data_folder(settings)} for Kafka: {said[-1] if said else 'no reason given'}")


def main() -> None:
    """Becomes the broker."""
    try:
        command = prepare(load())
    except (StackError, SettingsError) as error:
        sys.exit(f"broker: {error}")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
