"""Test how agents read a tool call's arguments, and the harness version."""

import pytest

from stepstream.services.fleet.agent import harness_version, tool_input
from stepstream.services.fleet.lookup import Lookup


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a+b"}', "a+b"), ('{"input": 3}', '{"input": 3}'), ("a+b", "a+b"), ("[1]", "[1]"), ("{}", "{}")],
)
def test_tool_input_is_the_argument_or_the_whole_text(arguments: str, text: str) -> None:
    assert tool_input(arguments) == text


def test_the_harness_version_depends_on_the_tools() -> None:
    class Fewer(Lookup):
        tools = Lookup.tools[:1]

    assert harness_version(Lookup) == harness_version(Lookup) != harness_version(Fewer)
