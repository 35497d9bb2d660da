"""Kill a gateway between two exports of one trace."""

import gzip
import urllib.request
from pathlib import Path

import pytest
from gateway_fixtures import gateway_process, gateway_settings
from otlp_fixtures import recorded_requests, steps_of, trace_id
from scripted_upstream import ScriptedUpstream
from stack_fixtures import with_settings
from waiting import TIMEOUT_S

from stepstream.config import Settings

pytestmark = pytest.mark.faults


def post(settings: Settings, path: str, headers: dict[str, str], body: bytes) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{settings.gateway.port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return int(reply.status)


def test_acknowledged_spans_survive_a_killed_gateway(
    registry_settings: Settings, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    """The gateway acknowledged the spans; the log records with their content arrive after the kill."""
    settings = with_settings(gateway_settings(registry_settings, upstream), otlp={"grace_s": 30.0, "settle_s": 60.0})
    spans, logs = sorted(recorded_requests("current-details"), key=lambda request: request.path, reverse=True)
    process = gateway_process(settings, tmp_path / "killed.log")
    process.start()
    assert post(settings, spans.path, spans.headers, spans.body) == 200
    process.kill()
    settings = with_settings(settings, otlp={"grace_s": 1.0})
    with gateway_process(settings, tmp_path / "next.log"):
        headers = {**logs.headers, "content-encoding": "gzip"}
        assert post(settings, logs.path, headers, gzip.compress(logs.body)) == 200
        steps = steps_of(settings, trace_id("current-details"), 3)
    assert [step["step_index"] for step in steps] == [0, 1, 2]
    assert steps[2]["response"]["content"] == "4711 was sent; 4712 is refunded."
    assert steps[2]["duration_ms"] > 0
