"""Run an agent with tools over MCP, or with a second agent over A2A, under third-party instrumentations.

Run it with the interpreter of `.venv-agents`: `otel_protocols.py mcp|a2a`. Spans come from OpenLLMetry's packages for
OpenAI and MCP and from the A2A SDK; exporters follow the OTEL_… variables. The MCP server is a separate process that
exports its own spans; the A2A server runs in this process.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

import openai
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.mcp import McpInstrumentor
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otel_agent import TOOLS

Tool = Callable[[str, dict[str, object]], Awaitable[str]]


async def with_mcp(ask: Callable[[Tool], Awaitable[None]]) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=sys.executable, args=[__file__, "mcp-server"], env=dict(os.environ))
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()

        async def tool(name: str, arguments: dict[str, object]) -> str:
            result = await session.call_tool(name, arguments)
            return "".join(part.text for part in result.content)

        await ask(tool)


def serve_mcp() -> None:
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("orders")
    server.add_tool(lambda order: f"lookup of {order}: sent", "lookup", description="Where an order is.")
    server.add_tool(lambda order: f"refund of {order}: done", "refund", description="Pays an order back.")
    server.run("stdio")


async def with_a2a(ask: Callable[[Tool], Awaitable[None]]) -> None:
    import httpx
    from a2a.client import ClientConfig, create_client
    from a2a.helpers.proto_helpers import get_message_text, new_text_message
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.events import EventQueue
    from a2a.server.request_handlers import DefaultRequestHandlerV2
    from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
    from a2a.server.tasks import InMemoryTaskStore
    from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Role, SendMessageRequest
    from starlette.applications import Starlette

    class Clerk(AgentExecutor):
        """The second agent: one model call, without tools."""

        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            messages = [{"role": "user", "content": context.get_user_input()}]
            async with openai.AsyncOpenAI() as client:
                reply = await client.chat.completions.create(model="demo", messages=messages)
            await event_queue.enqueue_event(new_text_message(reply.choices[0].message.content, role=Role.ROLE_AGENT))

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise NotImplementedError

    card = AgentCard(
        name="clerk",
        description="Knows orders.",
        version="1",
        capabilities=AgentCapabilities(streaming=False),
        supported_interfaces=[AgentInterface(url="http://clerk/", protocol_binding="JSONRPC", protocol_version="1.0")],
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="orders", name="orders", description="Knows orders.", tags=["orders"])],
    )
    routes = create_jsonrpc_routes(DefaultRequestHandlerV2(Clerk(), InMemoryTaskStore(), card), "/")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Starlette(routes=routes))) as http:
        client = await create_client(card, ClientConfig(streaming=False, httpx_client=http))

        async def tool(name: str, arguments: dict[str, object]) -> str:
            request = new_text_message(f"{name} {json.dumps(arguments)}", role=Role.ROLE_USER)
            answers = [
                get_message_text(each.message)
                async for each in client.send_message(SendMessageRequest(message=request))
            ]
            return "".join(answers)

        await ask(tool)


async def ask(tool: Tool) -> None:
    """Run the agent: call the model until it calls no more tools."""
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "order-agent", "user.id": "maria"}
    messages = [{"role": "user", "content": "Where are 4711 and 4712?"}]
    with trace.get_tracer("order-agent").start_as_current_span(
        "invoke_agent order-agent", attributes=attributes
    ) as span:
        async with openai.AsyncOpenAI() as client:
            while True:
                reply = await client.chat.completions.create(model="demo", messages=messages, tools=TOOLS)
                answer = reply.choices[0].message
                messages.append(answer.model_dump(exclude_none=True))
                if not answer.tool_calls:
                    break
                for call in answer.tool_calls:
                    result = await tool(call.function.name, json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        print(format(span.get_span_context().trace_id, "032x"))


if __name__ == "__main__":
    spans = TracerProvider()
    spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(spans)
    McpInstrumentor().instrument()
    OpenAIInstrumentor().instrument()
    if sys.argv[1] == "mcp-server":
        serve_mcp()
    else:
        asyncio.run({"mcp": with_mcp, "a2a": with_a2a}[sys.argv[1]](ask))
    spans.shutdown()
