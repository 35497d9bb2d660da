"""The verifier `regex`."""

from typing import Any

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st
from text_verifiers import create, value, verdict

from stepstream.jobs.verifiers.base import UnverifiableCase


def test_regex() -> None:
    assert value(create("regex", pattern="^a+$"), "aaa") == 1
    assert value(create("regex", pattern="a+"), "baab") == 1
    assert value(create("regex", pattern="a+", whole=True), "baab") == 0
    assert value(create("regex", pattern="sorry", wanted=False), "sorry, no") == 0
    assert value(create("regex"), "order 17", pattern="order [0-9]+") == 1


@pytest.mark.parametrize("pattern", [None, "(", 3])
def test_a_task_without_a_pattern_cannot_be_judged(pattern: Any) -> None:
    with pytest.raises(UnverifiableCase):
        verdict(create("regex"), "x", pattern=pattern)


def test_a_pattern_takes_linear_time() -> None:
    assert value(create("regex", pattern="^(a+)+$"), "a" * 50_000 + "b") == 0


@given(st.text(), st.text(alphabet="ab.*+?[](){}|^$ \\", min_size=1), st.text())
def test_a_quoted_text_is_found_anywhere(before: str, quoted: str, after: str) -> None:
    pattern = re2.escape(quoted)
    assert value(create("regex", pattern=pattern), before + quoted + after) == 1
    assert value(create("regex", pattern=pattern, wanted=False), before + quoted + after) == 0
