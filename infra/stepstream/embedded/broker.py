"""Run the embedded broker: Apache Kafka as one KRaft node that is broker and controller.

`python -m stepstream.embedded.broker` writes the configuration and formats a new data folder. It then replaces itself
with the Java process (exec), so that signals reach Kafka: SIGTERM stops it in under a second. Data is under
DATA/kafka. kill -9 loses no acknowledged record. A restart after kill -9 takes `broker.session_timeout_s`: the
controller admits the new broker only when the old session ends.
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


def main() -> None:
    """Replace this process with the broker; exit with a message if it cannot start."""
    try:
        command = prepare(load())
    except (StackError, SettingsError) as error:
        sys.exit(f"broker: {error}")
    os.execv(command[0], command)


def prepare(settings: Settings) -> list[str]:
    """Check jars and ports, write the configuration, format new data; return the broker's command line.

    Raises:
        StackError: the jars are not installed, a port is taken, or the data folder cannot be formatted.
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
        raise StackError(f"cannot write Kafka's log to {data} ({error}): set STEPSTREAM_PATHS_DATA") from None
    if not (data / "meta.properties").exists():
        _format(settings, file)
    return java.command(settings, java.MAIN, str(file))


def _format(settings: Settings, file: Path) -> None:
    cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    tool = java.command(settings, java.STORAGE_TOOL, "format", "-t", cluster, "-c", str(file))
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = output[-1] if output else f"status {done.returncode}, no output"
        raise StackError(f"cannot format {data_folder(settings)} for Kafka: {reason}")


def ports(settings: Settings) -> list[Port]:
    """Return the ports of clients and of the controller."""
    broker = settings.broker
    return [
        Port(broker.host, broker.port, "broker", "STEPSTREAM_BROKER_PORT"),
        Port(broker.host, broker.controller_port, "broker", "STEPSTREAM_BROKER_CONTROLLER_PORT"),
    ]


def configuration_file(settings: Settings) -> Path:
    """Return the path of the broker's configuration, which each start overwrites."""
    return settings.paths.data.absolute() / "run" / "kafka.properties"


def data_folder(settings: Settings) -> Path:
    """Return the folder of Kafka's log, DATA/kafka."""
    return settings.paths.data.absolute() / "kafka"


def properties(settings: Settings) -> dict[str, str]:
    """Return the broker's configuration. There is one node, so every internal topic has one replica."""
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
        # Topics come from the catalogue; a misspelt name must not create one.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        # The open transaction of a dead worker hides later records until it is aborted.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # The log is the truth: keep consumer offsets for a year (in minutes).
        "offsets.retention.minutes": "525600",
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // 6),
        # Reassign a dead consumer's partitions within seconds; the default of 45 s suits a large cluster.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "6000",
        "group.consumer.min.heartbeat.interval.ms": "250",
        "group.consumer.heartbeat.interval.ms": "1000",
        # Compact often; the hash table of compaction (128 MB by default) must fit the small heap.
        "log.cleaner.backoff.ms": "1000",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # An empty record of the metadata twice a second, the default, costs an idle broker a tenth of its CPU.
        "metadata.max.idle.interval.ms": "5000",
        # Few clients: few threads.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "4",
    }


def render(properties: dict[str, str]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


if __name__ == "__main__":
    main()
