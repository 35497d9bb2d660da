"""Measure the gateway's cost per call, against LiteLLM's proxy and direct calls of the upstream.

Run it as `.venv/bin/python bench/gateway.py [--quick]`. It starts its own broker and registry, the gateway with all
features (keys, contexts, tools, users, token ids and logprobs, spool, an event of every call to Kafka with acks=all),
LiteLLM's proxy in its own environment (keys, no database, no events), and one fake upstream that answers at once.

Each gateway is one process on one core, the same core in turn; upstream, caller and broker share the other cores.
Rates: 64 connections call as fast as they get answers. Latency: 50 calls a second, on schedule; a gateway's added
latency is its quantile less that of the direct calls of the same round. Figures are medians of alternating rounds.
"""

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from http_load import Load, command
from peers import python_of

from stepstream.config import Settings, environment_of, load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block
from stepstream.embedded.stack import Stack

LITELLM = ["litellm[proxy]==1.106.2"]
CONNECTIONS = 64
PACE = 50.0
TIMEOUT_S = 120.0
UPSTREAM = Path(__file__).with_name("fake_upstream.py")
SERVER_CORE, *OTHER_CORES = sorted(os.sched_getaffinity(0))
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@dataclass
class Server:
    """A server of model calls."""

    name: str
    port: int
    headers: dict[str, str]
    process: psutil.Process | None = None

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process and its children."""
        if self.process is None:
            return 0.0
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


@dataclass
class Round:
    """Calls per second, calls per CPU-second of the server, and latencies in milliseconds of one round."""

    rate: float
    per_core: float
    p50: float
    p99: float


@contextmanager
def running(arguments: list[str], cores: list[int], log: Path, **environment: str) -> Iterator[psutil.Process]:
    """Run a process on these cores; terminate it and its children at the end."""
    with log.open("ab") as sink:
        process = subprocess.Popen(arguments, env=ENVIRONMENT | environment, stdout=sink, stderr=sink)
    handle = psutil.Process(process.pid)
    handle.cpu_affinity(cores)
    try:
        yield handle
    finally:
        for child in handle.children(recursive=True):
            child.terminate()
        process.terminate()
        process.wait()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Block until `condition` is true; exit after `TIMEOUT_S`."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not start within {TIMEOUT_S:g} s")
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Return True if the URL answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def listens(port: int) -> bool:
    """Return True if a server listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def pin(pid: int, cores: list[int]) -> None:
    """Pin all threads of a process and of its children to these cores."""
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        for thread in process.threads():
            psutil.Process(thread.id).cpu_affinity(cores)


@contextmanager
def upstream(folder: Path) -> Iterator[Server]:
    """Run the fake provider."""
    port = free_block(1)
    with running([sys.executable, str(UPSTREAM), str(port)], OTHER_CORES, folder / "upstream.log"):
        wait_for(lambda: listens(port), "the fake upstream")
        yield Server("direct", port, {})


@contextmanager
def litellm(folder: Path, provider: Server) -> Iterator[Server]:
    """Run LiteLLM's proxy as its documentation recommends for production: one worker a core, no debug output."""
    port, key = free_block(1), f"sk-{secrets.token_hex(16)}"
    parameters = {"model": "openai/bench-model", "api_base": f"http://127.0.0.1:{provider.port}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "bench-model", "litellm_params": parameters}],
        "litellm_settings": {"set_verbose": False, "json_logs": True, "request_timeout": 600},
        "general_settings": {"master_key": key, "disable_spend_logs": True},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(config))  # JSON is YAML
    program = python_of("litellm", LITELLM).with_name("litellm")
    arguments = [str(program), "--config", str(file), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
    environment = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with running(arguments, [SERVER_CORE], folder / "litellm.log", **environment) as process:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"), "LiteLLM")
        yield Server("litellm", port, {"authorization": f"Bearer {key}"}, process)


@contextmanager
def gateway(folder: Path, provider: Server, settings: Settings) -> Iterator[Server]:
    """Run the gateway with all features, with `provider` as its inference worker."""
    port = free_block(1)
    fields = {"port": port, "require_key": True, "upstreams": [f"http://127.0.0.1:{provider.port}"]}
    settings = Settings.model_validate(settings.model_dump() | {"gateway": settings.gateway.model_dump() | fields})
    environment = environment_of(settings)
    declared = ["--tenant", "bench", "--model", "*", "--consent", "train"]
    created = subprocess.run(
        [sys.executable, "-m", "stepstream.cli.main", "keys", "create", *declared, "--json"],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    key = json.loads(created.stdout)["key"]
    arguments = [sys.executable, "-m", "stepstream.services.gateway"]
    with running(arguments, [SERVER_CORE], folder / "gateway.log", **environment) as process:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"), "the gateway")
        yield Server("stepstream", port, {"authorization": f"Bearer {key}"}, process)


def calls(server: Server, folder: Path, *, stream: bool, seconds: float, per_s: float = 0.0) -> Round:
    """Run one round of calls to a server."""
    job = Load(server.port, stream, CONNECTIONS, seconds + 1.0, 1.0, per_s, server.headers)
    before = server.cpu_s()
    arguments, file = command(job, folder)
    process = subprocess.Popen(arguments)
    psutil.Process(process.pid).cpu_affinity(OTHER_CORES)
    if process.wait():
        raise SystemExit(f"the load process for {server.name} failed: see its error above")
    used = server.cpu_s() - before
    outcome = json.loads(file.read_text())
    times = sorted(outcome["latencies_ms"])
    if outcome["failed"] or not times:
        raise SystemExit(f"{outcome['failed']} calls to {server.name} failed, {len(times)} succeeded: see its log")
    p99 = times[min(int(len(times) * 0.99), len(times) - 1)]
    return Round(
        len(times) / outcome["seconds"], outcome["calls"] / used if used else 0.0, statistics.median(times), p99
    )


def median(rounds: list[Round], figure: str) -> float:
    """Return the median of one figure over the rounds."""
    return float(statistics.median(getattr(each, figure) for each in rounds))


def measure(servers: list[Server], folder: Path, rounds: int, **options: float | bool) -> dict[str, list[Round]]:
    """Run rounds that alternate between the servers."""
    results: dict[str, list[Round]] = {server.name: [] for server in servers}
    for number in range(rounds):
        for server in servers:
            result = calls(server, folder, **options)  # type: ignore[arg-type]
            results[server.name].append(result)
            print(
                f"  round {number + 1} {options}: {server.name} {result.rate:,.0f}/s, "
                f"{result.per_core:,.0f} a CPU-second, "
                f"p50 {result.p50:.2f} ms, p99 {result.p99:.2f} ms",
                file=sys.stderr,
            )
    return results


def figures(
    unary: dict[str, list[Round]], streamed: dict[str, list[Round]], paced: dict[str, list[Round]]
) -> dict[str, float]:
    """Return the figures by name."""
    by_name: dict[str, float] = {}
    for kind, rounds in (("", unary), ("stream_", streamed)):
        for name in rounds:
            by_name[f"{kind}rate_{name}"] = median(rounds[name], "rate")
            by_name[f"{kind}per_core_{name}"] = median(rounds[name], "per_core")
        by_name[f"{kind}rate_ratio_to_litellm"] = by_name[f"{kind}rate_stepstream"] / by_name[f"{kind}rate_litellm"]
        by_name[f"{kind}cpu_ratio_to_litellm"] = (
            by_name[f"{kind}per_core_stepstream"] / by_name[f"{kind}per_core_litellm"]
        )
    for quantile in ("p50", "p99"):
        for name in ("stepstream", "litellm"):
            pairs = zip(paced[name], paced["direct"], strict=True)
            added = [getattr(one, quantile) - getattr(direct, quantile) for one, direct in pairs]
            by_name[f"added_{quantile}_ms_{name}"] = statistics.median(added)
        ratio = by_name[f"added_{quantile}_ms_stepstream"] / by_name[f"added_{quantile}_ms_litellm"]
        by_name[f"added_{quantile}_ratio_to_litellm"] = ratio
        by_name[f"{quantile}_ms_direct"] = median(paced["direct"], quantile)
    by_name["calls_per_s_core"] = by_name["per_core_stepstream"]
    return by_name


def print_table(by_name: dict[str, float]) -> None:
    """Print the table."""
    print("\n| | calls/s | a CPU-second | streams/s | a CPU-second | adds p50 ms | adds p99 ms |")
    print("|---|---|---|---|---|---|---|")
    for name in ("direct", "stepstream", "litellm"):
        cells = [by_name[f"rate_{name}"], by_name[f"per_core_{name}"], by_name[f"stream_rate_{name}"]]
        cells.append(by_name[f"stream_per_core_{name}"])
        added = [f"{by_name[f'added_{q}_ms_{name}']:.2f}" if name != "direct" else "–" for q in ("p50", "p99")]
        print(f"| {name} | " + " | ".join([*(f"{cell:,.0f}" if cell else "–" for cell in cells), *added]) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, under a minute")
    quick = parser.parse_args().quick
    rounds, seconds, paced_s = (1, 6.0, 6.0) if quick else (3, 6.0, 12.0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepstream-bench-")))
        kafka = stack.enter_context(Stack(isolated(load({}), folder / "stack"), ["broker", "registry"]))
        for child in psutil.Process().children(recursive=True):
            pin(child.pid, OTHER_CORES)
        provider = stack.enter_context(upstream(folder))
        stepstream = stack.enter_context(gateway(folder, provider, kafka.settings))
        peer = stack.enter_context(litellm(folder, provider))
        servers = [provider, stepstream, peer]
        unary = measure(servers, folder, rounds, stream=False, seconds=seconds)
        streamed = measure(servers, folder, rounds, stream=True, seconds=seconds)
        paced = measure(servers, folder, rounds, stream=False, seconds=paced_s, per_s=PACE)
    by_name = figures(unary, streamed, paced)
    print_table(by_name)
    print(json.dumps({name: round(value, 4) for name, value in by_name.items()}))


if __name__ == "__main__":
    main()
