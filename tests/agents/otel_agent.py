"""Run an agent with tools under the given instrumentation; its exporters follow the OTEL_… variables.

Run it with the interpreter of `.venv-agents`: `otel_agent.py openai_v2|openllmetry|openinference`. It answers one
question with three model calls and three tool calls, inside its own span.
"""

import os
import sys
from importlib import import_module

import openai
from opentelemetry import trace
from opentelemetry._logs import set_logger_provider
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

INSTRUMENTATIONS = {
    "openai_v2": "opentelemetry.instrumentation.openai_v2",
    "openllmetry": "opentelemetry.instrumentation.openai",
    "openinference": "openinference.instrumentation.openai",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}},
        },
    }
    for name in ("lookup", "refund")
]


def main(instrumentation: str) -> None:
    compression = Compression.Gzip if os.environ.get("OTEL_COMPRESSED") else Compression.NoCompression
    spans = TracerProvider()
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(compression=compression)))
    trace.set_tracer_provider(spans)
    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(compression=compression)))
    set_logger_provider(logs)
    import_module(INSTRUMENTATIONS[instrumentation]).OpenAIInstrumentor().instrument()
    tracer = trace.get_tracer("order-agent")
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "order-agent", "user.id": "maria"}
    with (
        openai.OpenAI() as client,
        tracer.start_as_current_span("invoke_agent order-agent", attributes=attributes) as span,
    ):
        work(client, tracer)
        print(format(span.get_span_context().trace_id, "032x"))
    spans.shutdown()
    logs.shutdown()


def work(client: openai.OpenAI, tracer: trace.Tracer) -> None:
    messages = [
        {"role": "system", "content": "Help with orders."},
        {"role": "user", "content": "Where are 4711 and 4712?"},
    ]
    while True:
        reply = client.chat.completions.create(
            model="demo", messages=messages, tools=TOOLS, temperature=0.5, max_tokens=100
        )
        answer = reply.choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            return
        for call in answer.tool_calls:
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.function.name,
                "gen_ai.tool.call.id": call.id,
            }
            with tracer.start_as_current_span(f"execute_tool {call.function.name}", attributes=attributes) as span:
                result = f"{call.function.name} of {call.function.arguments}: done"
                span.set_attribute("gen_ai.tool.call.result", result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main(sys.argv[1])
