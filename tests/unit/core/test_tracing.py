"""Spans are exported to a collector if one is set; without one, OpenTelemetry is not imported."""

import subprocess
import sys

import pytest
from stack_fixtures import with_settings
from trace_collector import collect_traces

from stepstream.config import Settings
from stepstream.core.process import Fatal
from stepstream.core.tracing import is_sampled, open_tracing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def test_spans_of_one_trace_reach_the_collector() -> None:
    with collect_traces() as collector:
        tracing = open_tracing(with_settings(Settings(), tracing={"endpoint": collector.url}), "gateway")
        assert tracing is not None
        first = tracing.start("call chat", "server", PARENT, {"stepstream.tenant": "acme"}, 1_760_000_000_000_000)
        second = tracing.start("process steps", "consumer", first.traceparent, {})
        never_ended = tracing.start("send steps", "producer", first.traceparent, {})
        second.end()
        first.end(error="upstream_error")
        tracing.close()
    assert is_sampled(never_ended.traceparent)
    found = {span.name: span for span in collector.spans}
    assert set(found) == {"call chat", "process steps"}
    call, process = found["call chat"], found["process steps"]
    assert (call.service, call.trace_id, call.parent_id) == ("stepstream-gateway", TRACE, "b7ad6b7169203331")
    assert (process.trace_id, process.parent_id) == (TRACE, call.span_id)
    assert "upstream_error" in call.text
    assert "start_time_unix_nano: 1760000000000000000" in call.text


def test_a_trace_that_its_agent_does_not_record_is_not_exported() -> None:
    with collect_traces() as collector:
        settings = with_settings(Settings(), tracing={"endpoint": collector.url, "share": 0.0})
        tracing = open_tracing(settings, "gateway")
        assert tracing is not None
        for parent in (PARENT[:-2] + "00", "", "nonsense"):
            span = tracing.start("call chat", "server", parent, {})
            span.end()
            assert not is_sampled(span.traceparent)
        tracing.start("call chat", "server", PARENT, {}).end()  # its agent records it: the share does not apply
        tracing.close()
    assert [span.trace_id for span in collector.spans] == [TRACE]


@pytest.mark.parametrize("text", ["", "00-a-b-", "00-a-b-zz", "00-a-b-00", "00-a-b-001"])
def test_a_context_without_the_flag_is_not_sampled(text: str) -> None:
    assert not is_sampled(text)


def test_without_an_endpoint_nothing_is_imported() -> None:
    assert open_tracing(Settings(), "gateway") is None
    code = (
        "import sys\n"
        "from stepstream.config import Settings\n"
        "from stepstream.core.tracing import open_tracing\n"
        "import stepstream.jobs.runtime.spans\n"
        "assert open_tracing(Settings(), 'govern') is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_the_error_gives_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(Fatal, match=r"opentelemetry\.sdk\.trace is not installed: pip install 'stepstream\[tracing\]'"):
        open_tracing(with_settings(Settings(), tracing={"endpoint": "http://127.0.0.1:1"}), "gateway")
