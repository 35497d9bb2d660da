"""Shared prefixes are contained in an earlier step."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.sdk import shared_prefix
from stepstream.sdk.shared_prefix import PrefixTracker
from stepstream.topics.events import new_message
from stepstream.topics.ids import token_digest


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("ab"), max_size=4), st.lists(st.integers(0, 2), max_size=5)), max_size=6
    )
)
def test_shared_prefixes_are_contained_in_the_earlier_step(rounds: list[tuple[list[str], list[int]]]) -> None:
    tracker = PrefixTracker()
    contexts: list[tuple[list[str], list[int]]] = []
    for index, (texts, tokens) in enumerate(rounds):
        messages = [new_message(role="user", content=text) for text in texts]
        shared = tracker.find(index, messages, tokens)
        if shared.messages or shared.tokens:
            earlier = index - 1 if shared.step is None else shared.step
            assert earlier < index
            assert contexts[earlier][0][: shared.messages] == texts[: shared.messages]
            assert contexts[earlier][1][: shared.tokens] == tokens[: shared.tokens]
            assert shared.digest == (token_digest(tokens[: shared.tokens]) if shared.tokens else None)
        tracker.add_step(index, messages, new_message(role="assistant", content="c"), [*tokens, 3])
        contexts.append(([*texts, "c"], [*tokens, 3]))


def test_steps_may_be_added_during_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, common = shared_prefix.PrefixTracker(), shared_prefix._common_length
    messages = [new_message(role="user", content="q")]
    for index in range(3):
        tracker.add_step(index, messages, new_message(role="assistant", content="x"), [])

    def meanwhile(one: Any, other: Any) -> int:
        tracker.add_step(9, messages, new_message(role="assistant", content="y"), [])
        return common(one, other)

    monkeypatch.setattr(shared_prefix, "_common_length", meanwhile)
    assert tracker.find(3, messages, []).messages == 1
