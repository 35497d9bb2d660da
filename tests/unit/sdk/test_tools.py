"""Tools are recorded as decorated functions or as blocks."""

from collections.abc import Iterator

import pytest

from stepstream import sdk


async def test_a_tool_use_block_is_a_tool_call(sink: sdk.MemorySink) -> None:
    with sdk.trajectory() as t, t.step() as s:
        with sdk.tool_use("search", {"q": "x"}) as use:
            use.result = ["found"]
        with pytest.raises(TimeoutError):
            async with sdk.tool_use("fetch"):
                raise TimeoutError
        s.response("done")
    calls = sink.of("steps")[0]["response"]["tool_calls"]
    recorded = [(call["name"], call["arguments"], call["result"], call["error"]) for call in calls]
    assert recorded == [("search", '{"q":"x"}', '["found"]', None), ("fetch", "{}", None, "TimeoutError")]


def test_a_generator_cannot_be_a_tool(sink: sdk.MemorySink, caplog: pytest.LogCaptureFixture) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    assert sdk.tool(numbers) is numbers
    assert "generator" in caplog.text
