"""Run the servers of `ingest.py`: the gateway, and Agent Lightning's store in its own environment."""

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from gateway import answers, running, wait_for
from peers import python_of

from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block

AGENT_LIGHTNING = ["agentlightning==0.3.0"]
GATEWAYS = 2
CORES = sorted(os.sched_getaffinity(0))


@dataclass
class Server:
    """A server of OTLP spans."""

    ports: list[int]
    processes: list[psutil.Process]
    resource: dict[str, str]
    """Resource attributes that its spans need."""

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def is_connected(self) -> bool:
        """Return True if the client has a connection to every process."""
        return all(
            any(c.status == psutil.CONN_ESTABLISHED and c.laddr.port in self.ports for c in process.net_connections())
            for process in self.processes
        )

    def kill(self) -> None:
        """Send SIGKILL."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)


@contextmanager
def gateway(folder: Path, settings: Settings) -> Iterator[Server]:
    """Run the gateway without a model upstream."""
    ports = [free_block(1) for _ in range(GATEWAYS)]
    arguments = [sys.executable, "-m", "stepstream.services.gateway"]
    with ExitStack() as opened:
        processes = []
        for port in ports:
            environment = environment_of(settings) | {"STEPSTREAM_GATEWAY_PORT": str(port)}
            log = folder / f"gateway-{port}.log"
            processes.append(opened.enter_context(running(arguments, CORES, log, **environment)))
        for port in ports:
            wait_for(partial(answers, f"http://127.0.0.1:{port}/health"), "the gateway")
        yield Server(ports, processes, {})


@contextmanager
def lightning(folder: Path) -> Iterator[Server]:
    """Run Agent Lightning's store with one rollout for the spans."""
    port = free_block(1)
    python = str(python_of("agentlightning", AGENT_LIGHTNING))
    arguments = [python, "-m", "agentlightning.cli.store", "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--log-level", "WARNING"]
    with running(arguments, CORES, folder / "lightning.log", LITELLM_LOCAL_MODEL_COST_MAP="True") as process:
        url = f"http://127.0.0.1:{port}/v1/agl"
        wait_for(lambda: answers(f"{url}/health"), "Agent Lightning's store")
        request = urllib.request.Request(f"{url}/rollouts", b'{"input": {}}', {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            rollout = json.load(reply)
        ids = {
            "agentlightning.rollout_id": rollout["rollout_id"],
            "agentlightning.attempt_id": rollout["attempt"]["attempt_id"],
        }
        yield Server([port], [process], ids)
