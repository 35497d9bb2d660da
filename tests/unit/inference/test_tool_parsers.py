"""Test which texts the tool parsers take as a call, and which beginnings a stream holds back."""

import json

from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.inference.tool_parsers import CallJson, CallLine, NoTools

TOOLS = ["get", "get_all", "calc"]
TEXTS = st.one_of(
    st.text(),
    st.tuples(st.sampled_from([*TOOLS, "put", ""]), st.text(alphabet='ab()\n"é')).map(
        lambda two: f"{two[0]}({two[1]})"
    ),
)


@given(TEXTS)
def test_a_call_can_be_written_back_exactly(text: str) -> None:
    call = CallLine().parse(text, TOOLS)
    if call is not None:
        assert f"{call.name}({json.loads(call.arguments)['input']})" == text
        assert call.name in TOOLS
    raw = CallJson().parse(text, TOOLS)
    assert (raw is None) == (call is None)
    assert raw is None or f"{raw.name}({raw.arguments})" == text


@given(TEXTS)
def test_every_beginning_of_a_call_is_held_back(text: str) -> None:
    if CallLine().parse(text, TOOLS) is not None:
        assert all(CallLine().may_become_call(text[:end], TOOLS) for end in range(len(text) + 1))


def test_only_a_complete_call_of_a_known_tool_is_a_call() -> None:
    parser = CallLine()
    assert parser.parse("get(a)", TOOLS) is not None
    assert [parser.parse(text, TOOLS) for text in ("get", "get(a", "ans(1)", " get(a)", "get(a) ")] == [None] * 5
    assert parser.parse("get(a)", []) is None
    assert [parser.may_become_call(text, TOOLS) for text in ("", "ge", "get_", "geh", "ans")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    broken = CallJson().parse("get({)", TOOLS)
    assert broken is not None
    assert broken.arguments == "{"
    assert NoTools().parse("get(a)", TOOLS) is None
    assert not NoTools().may_become_call("", TOOLS)
