"""Measure the delays of running streams while much telemetry and feedback arrives at the gateway.

Run it as `.venv/bin/python bench/edge.py [--quick]`. It starts its own broker and registry, a gateway with keys and all
features, and an upstream that streams 10 tokens a second. 200 streams run through the gateway. Then 64 MB arrive: OTLP
traces in bodies of 7 MB (protobuf), and lists of feedback of 7 MB, in turn, each after the answer to the last. The
figure is the p99 of the times between two tokens in that time, relative to the p99 of the same streams before it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import otlp_load
import psutil
from gateway import ENVIRONMENT, OTHER_CORES, Server, gateway, listens, pin, running, wait_for
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stepstream.config import load
from stepstream.embedded.addresses import isolated
from stepstream.embedded.ports import free_block
from stepstream.embedded.stack import Stack

STREAMS = 200
BODY_BYTES = 7_000_000
TOTAL_BYTES, QUICK_BYTES = 64_000_000, 28_000_000
BEFORE_S, QUICK_BEFORE_S = 20.0, 8.0
LONGEST_S = 120.0
SCRIPT = Path(__file__).with_name("paced_streams.py")
ANSWERS = {"/v1/traces": 200, "/v1/feedback": 202}


def traces(number: int) -> bytes:
    """Return a request of 7 MB with the spans of many runs; requests of other numbers have other ids."""
    batch = otlp_load.body({})
    whole = ExportTraceServiceRequest()
    for part in range(BODY_BYTES // len(batch)):
        one = batch.replace(otlp_load.MARK, (number * 1000 + part + 1).to_bytes(4, "big"))
        whole.resource_spans.extend(ExportTraceServiceRequest.FromString(one).resource_spans)
    return bytes(whole.SerializeToString())


def feedback(number: int) -> bytes:
    """Return a list of 7 MB."""
    item = {"name": "outcome", "value": 1.0, "step_index": 3, "comment": "it arrived in time " * 8}
    items = [item | {"trajectory_id": f"run-{number}-{i}"} for i in range(BODY_BYTES // 240)]
    return json.dumps(items).encode()


def post(server: Server, path: str, body: bytes) -> float:
    """Post a body; return the seconds until its answer."""
    kind = "application/x-protobuf" if path == "/v1/traces" else "application/json"
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", body, {"content-type": kind, **server.headers}
    )
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=LONGEST_S) as reply:
            if reply.status != ANSWERS[path]:
                raise SystemExit(f"{path} got status {reply.status}")
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{path} got status {error.code}: {error.read()[:500]!r}") from None
    return time.monotonic() - began


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of unsorted values."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def measure(server: Server, folder: Path, before_s: float, total_bytes: int) -> dict[str, float]:
    """Run the streams, send the load after `before_s` seconds, and return the figures."""
    bodies = [(path, make(n)) for n in range(5) for path, make in (("/v1/traces", traces), ("/v1/feedback", feedback))]
    bodies = bodies[: round(total_bytes / BODY_BYTES)]
    outcome = folder / "gaps.json"
    key = server.headers["authorization"].removeprefix("Bearer ")
    seconds = 2 * before_s + 3.0
    arguments = [str(SCRIPT), "read", str(server.port), str(STREAMS), str(seconds), str(outcome), key]
    streams = subprocess.Popen([sys.executable, *arguments], env=ENVIRONMENT)
    psutil.Process(streams.pid).cpu_affinity(OTHER_CORES)
    time.sleep(3.0 + before_s)
    began = time.monotonic()
    took = [post(server, path, body) for path, body in bodies]
    ended = time.monotonic()
    if streams.poll() is not None:
        raise SystemExit(f"the load took {ended - began:.1f} s, longer than the streams: they must run longer")
    if streams.wait():
        raise SystemExit("the streams failed: see their error above")
    gaps = json.loads(outcome.read_text())
    beside = [gap for at, gap in gaps if began <= at <= ended]
    without = [gap for at, gap in gaps if at < began]
    megabytes = sum(len(body) for _, body in bodies) / 1e6
    figures = {"mb": megabytes, "mb_per_s": megabytes / (ended - began), "body_s": statistics.median(took)}
    for name, values in (("without", without), ("beside", beside)):
        figures |= {f"{q}_ms_{name}": quantile(values, s) for q, s in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    return figures | {"stream_p99_ratio": figures["p99_ms_beside"] / figures["p99_ms_without"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="28 MB, under a minute")
    quick = parser.parse_args().quick
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stepstream-bench-")))
        kafka = stack.enter_context(Stack(isolated(load({}), folder / "stack"), ["broker", "registry"]))
        for child in psutil.Process().children(recursive=True):
            pin(child.pid, OTHER_CORES)
        port = free_block(1)
        stack.enter_context(
            running([sys.executable, str(SCRIPT), "serve", str(port)], OTHER_CORES, folder / "upstream.log")
        )
        wait_for(lambda: listens(port), "the upstream")
        server = stack.enter_context(gateway(folder, Server("upstream", port, {}), kafka.settings))
        before_s, size = (QUICK_BEFORE_S, QUICK_BYTES) if quick else (BEFORE_S, TOTAL_BYTES)
        figures = measure(server, folder, before_s, size)
    print("\n| | p50 ms | p99 ms | longest ms |\n|---|---|---|---|")
    for name in ("without", "beside"):
        cells = " | ".join(f"{figures[f'{q}_ms_{name}']:.1f}" for q in ("p50", "p99", "max"))
        print(f"| {name} | {cells} |")
    print(f"\n{figures['mb']:.0f} MB at {figures['mb_per_s']:.1f} MB/s\n")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
