"""Run an agent with tools under the given instrumentation; its exporters follow the OTEL_… variables.

Run it with the interpreter of `.venv-agents`: `otel_agent.py openai_v2|openllmetry|openinference [chat|responses]
[stream]`. It answers one question with three model calls and three tool calls, inside its own span. An environment with
Logfire also runs `otel_agent.py logfire` (with `latest`: its second generation of attributes).
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

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
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}},
        },
    }
    for name in ("lookup", "refund")
]


AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "order-agent", "user.id": "maria"}
SYSTEM, QUESTION = "Help with orders.", "Where are 4711 and 4712?"


def main(instrumentation: str, *options: str) -> None:
    shut_down = instrument_logfire(*options) if instrumentation == "logfire" else instrument(instrumentation)
    tracer = trace.get_tracer("order-agent")
    with (
        openai.OpenAI() as client,
        tracer.start_as_current_span("invoke_agent order-agent", attributes=AGENT) as span,
    ):
        use = use_responses if "responses" in options else use_chat
        use(client, tracer, "stream" in options)
        print(format(span.get_span_context().trace_id, "032x"))
    shut_down()


def instrument(instrumentation: str) -> Callable[[], None]:
    compression = Compression.Gzip if os.environ.get("OTEL_COMPRESSED") else Compression.NoCompression
    spans = TracerProvider()
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(compression=compression)))
    trace.set_tracer_provider(spans)
    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(compression=compression)))
    set_logger_provider(logs)
    import_module(INSTRUMENTATIONS[instrumentation]).OpenAIInstrumentor().instrument()

    def shut_down() -> None:
        spans.shutdown()
        logs.shutdown()

    return shut_down


def instrument_logfire(*options: str) -> Callable[[], None]:
    logfire: Any = import_module("logfire")
    logfire.configure(send_to_logfire=False, console=False, metrics=False, inspect_arguments=False)
    logfire.instrument_openai(**{"version": "latest"} if "latest" in options else {})
    return lambda: logfire.shutdown(flush=True)


def use_chat(client: openai.OpenAI, tracer: trace.Tracer, stream: bool) -> None:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    request: dict[str, Any] = {"model": "demo", "tools": TOOLS, "temperature": 0.5, "max_tokens": 100}
    while True:
        if stream:
            with client.chat.completions.stream(
                messages=messages, stream_options={"include_usage": True}, **request
            ) as events:
                answer = events.get_final_completion().choices[0].message
        else:
            answer = client.chat.completions.create(messages=messages, **request).choices[0].message
        calls = answer.tool_calls or []
        message: dict[str, Any] = {"role": "assistant", "content": answer.content}
        if calls:
            message["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in calls]
            for call in message["tool_calls"]:
                call["function"].pop("parsed_arguments", None)
        messages.append(message)
        if not calls:
            return
        for call in calls:
            result = use_tool(tracer, call.id, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def use_responses(client: openai.OpenAI, tracer: trace.Tracer, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]
    request: dict[str, Any] = {
        "model": "demo",
        "instructions": SYSTEM,
        "tools": tools,
        "temperature": 0.5,
        "max_output_tokens": 100,
    }
    while True:
        if stream:
            with client.responses.stream(input=items, **request) as events:
                reply: Any = events.get_final_response()
        else:
            reply = client.responses.create(input=items, **request)
        calls = [item for item in reply.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in reply.output]
        if not calls:
            return
        for call in calls:
            result = use_tool(tracer, call.call_id, call.name, call.arguments)
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def use_tool(tracer: trace.Tracer, call_id: str, name: str, arguments: str) -> str:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.id": call_id,
    }
    with tracer.start_as_current_span(f"execute_tool {name}", attributes=attributes) as span:
        result = f"{name} of {arguments}: done"
        span.set_attribute("gen_ai.tool.call.result", result)
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
