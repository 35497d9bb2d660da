"""Run Kafka nodes from the embedded jars with any configuration: several nodes, TLS, an authorizer."""

import base64
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from waiting import wait_until

from stepstream.config import KafkaSettings, Settings
from stepstream.embedded import broker, java
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import SILENT
from stepstream.topics.client import admin_client

HEAP_MB = 256
PORTS = 3


class KafkaNodes:
    """A cluster of nodes that are each broker and controller; as a context manager, started and stopped.

    Node i, counted from 1, has three ports: of its clients' listener, of a second one, and of its controller.
    """

    def __init__(
        self,
        base: Settings,
        folder: Path,
        count: int,
        configure: Callable[["KafkaNodes", int], Mapping[str, str]],
        format_arguments: Sequence[str] = (),
    ) -> None:
        """Prepare the nodes; `configure` returns further properties of a node, which replace the common ones."""
        self._folder, self._count, self._configure, self._format = folder, count, configure, format_arguments
        self._first_port = free_block(PORTS * count)
        base = isolated(base, folder)
        self._settings = base.model_copy(update={"broker": base.broker.model_copy(update={"heap_mb": HEAP_MB})})
        self._cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def port(self, node: int, which: int = 0) -> int:
        """Return a port of a node."""
        return self._first_port + PORTS * (node - 1) + which

    def bootstrap(self, which: int = 0) -> str:
        """Return the addresses of one listener of all nodes."""
        return ",".join(f"127.0.0.1:{self.port(node, which)}" for node in self.nodes)

    @property
    def nodes(self) -> range:
        """Numbers of the nodes."""
        return range(1, self._count + 1)

    def start(self, node: int) -> None:
        """Start a node, over its data if it has any, without waiting."""
        folder = self._folder / f"node-{node}"
        data, file = folder / "data", folder / "kafka.properties"
        folder.mkdir(parents=True, exist_ok=True)
        voters = ",".join(f"{one}@127.0.0.1:{self.port(one, 2)}" for one in self.nodes)
        properties = broker.properties(self._settings) | {
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "log.dirs": str(data),
            **self._configure(self, node),
        }
        file.write_text(broker.render(properties))
        if not data.exists():
            tool = java.command(
                self._settings, java.STORAGE_TOOL, "format", "-t", self._cluster, "-c", str(file), *self._format
            )
            subprocess.run(tool, check=True, capture_output=True)
        command = java.command(self._settings, java.MAIN, str(file))
        with (folder / "log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "stepstream.embedded.child", "--", *command], stdout=log, stderr=log
            )

    def kill(self, node: int) -> None:
        """Send SIGKILL to a node and wait for its end."""
        self._processes[node].kill()
        self._processes[node].wait()

    def wait_ready(self, kafka: KafkaSettings, brokers: int) -> None:
        """Wait until the cluster lists this number of brokers."""
        admin = admin_client(kafka, SILENT)

        def ready() -> bool:
            for node, process in self._processes.items():
                assert process.poll() is None, f"node {node} ended:\n{self.log(node)[-4000:]}"
            try:
                return len(admin.list_topics(timeout=2).brokers) >= brokers
            except KafkaException:
                return False

        wait_until(ready, lambda: f"no cluster of {brokers} nodes:\n{self.log(1)[-4000:]}")

    def log(self, node: int) -> str:
        """Return the log of a node."""
        return (self._folder / f"node-{node}" / "log").read_text(errors="replace")

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self.start(node)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill all nodes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
