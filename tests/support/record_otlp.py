"""Record an instrumentation's exports for tests/data/otlp.

`python tests/support/record_otlp.py NAME "PACKAGE VERSION" PYTHON AGENT OPTIONS…` runs `tests/agents/AGENT` under the
interpreter of an environment that has the instrumentation, against `order_model`.
"""

import base64
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from order_model import order_model

TESTS = Path(__file__).parents[1]
KINDS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/logs": ExportLogsServiceRequest}
IDS = "traceId", "spanId", "parentSpanId"


def main(name: str, package: str, python: str, agent: str, *options: str) -> None:
    """Run the agent and write its requests in the order they were sent."""
    requests: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path in KINDS:
                as_json = _with_hex_ids(MessageToDict(KINDS[self.path].FromString(body)))
                requests.append({"path": self.path, "protobuf": base64.b64encode(body).decode(), "json": as_json})
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with order_model() as model_url, ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": model_url,
            "OTEL_SERVICE_NAME": "order-agent",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        subprocess.run([python, TESTS / "agents" / agent, *options], env=environment, check=True)
        server.shutdown()
    recorded = {"recorded_from": package, "requests": requests}
    (TESTS / "data" / "otlp" / f"{name}.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


def _with_hex_ids(raw: Any) -> Any:
    """OTLP's JSON has ids as hexadecimal, protobuf's JSON as base64."""
    if isinstance(raw, list):
        return [_with_hex_ids(item) for item in raw]
    if not isinstance(raw, dict):
        return raw
    return {
        name: base64.b64decode(value).hex() if name in IDS and isinstance(value, str) else _with_hex_ids(value)
        for name, value in raw.items()
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
