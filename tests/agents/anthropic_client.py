"""Run an agent on Anthropic's client: `anthropic_client.py whole|streamed`; reads GATEWAY_… and QUESTION."""

import json
import os
import sys

import anthropic
from tools import lookup, refund

TOOLS = {"lookup": lookup, "refund": refund}
ORDER = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}


def main(streaming: bool) -> None:
    with anthropic.Anthropic(
        base_url=os.environ["GATEWAY_URL"].removesuffix("/v1"),
        api_key=os.environ["GATEWAY_KEY"],
        default_headers=json.loads(os.environ["GATEWAY_HEADERS"]),
    ) as client:
        print(work(client, streaming))


def work(client: anthropic.Anthropic, streaming: bool) -> str:
    """Answer the question; replies return to the conversation as Anthropic's own types."""
    messages = [{"role": "user", "content": os.environ["QUESTION"]}]
    while True:
        request = {
            "model": "demo",
            "max_tokens": 1000,
            "system": [{"type": "text", "text": "Help with orders.", "cache_control": {"type": "ephemeral"}}],
            "messages": messages,
            "tools": [
                {"name": name, "description": tool.__doc__, "input_schema": ORDER} for name, tool in TOOLS.items()
            ],
        }
        if streaming:
            with client.messages.stream(**request) as stream:
                reply = stream.get_final_message()
        else:
            reply = client.messages.create(**request)
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            return "".join(block.text for block in reply.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": TOOLS[block.name](**block.input)}
            for block in reply.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    main(sys.argv[1] == "streamed")
