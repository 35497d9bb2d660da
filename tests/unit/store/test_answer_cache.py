"""Test the answers that the store keeps for SELECTs that ask for it."""

from dataclasses import replace

import pytest

from stepstream.services.store.answer_cache import AnswerCache, Question, ttl_of

QUESTION = Question(False, None, (), (), "Native", b"SELECT 1")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def put(cache: AnswerCache, question: Question, *blocks: bytes, ttl_s: float = 60.0) -> None:
    recording = cache.record(question, ttl_s)
    for block in blocks:
        recording.add(block)
    recording.end()


def test_an_answer_is_kept_until_its_time_is_over() -> None:
    clock = Clock()
    cache = AnswerCache(clock=clock)
    assert cache.get(QUESTION) is None
    put(cache, QUESTION, b"one ", b"answer", ttl_s=10)
    clock.now = 9.9
    assert cache.get(QUESTION) == b"one answer"
    clock.now = 10.0
    assert cache.get(QUESTION) is None


@pytest.mark.parametrize(
    "change",
    [
        {"reads_only": True},
        {"database": "other"},
        {"settings": (("max_threads", "1"),)},
        {"parameters": (("tenant", "a"),)},
        {"format": "CSV"},
        {"text": b"SELECT 2"},
    ],
)
def test_an_answer_to_another_question_is_none(change: dict[str, object]) -> None:
    cache = AnswerCache()
    put(cache, QUESTION, b"answer")
    assert cache.get(replace(QUESTION, **change)) is None  # type: ignore[arg-type]


def test_an_incomplete_answer_is_not_kept() -> None:
    cache = AnswerCache()
    cache.record(QUESTION, 60).add(b"half")
    assert cache.get(QUESTION) is None


def test_a_large_answer_is_not_kept() -> None:
    cache = AnswerCache(answer_bytes=4)
    put(cache, QUESTION, b"1234", b"5")
    assert cache.get(QUESTION) is None
    put(cache, QUESTION, b"1234")
    assert cache.get(QUESTION) == b"1234"


def test_the_least_recently_used_answer_goes_first() -> None:
    cache = AnswerCache(total_bytes=8)
    questions = [replace(QUESTION, text=b"SELECT %d" % number) for number in range(3)]
    put(cache, questions[0], b"1234")
    put(cache, questions[1], b"1234")
    assert cache.get(questions[0]) is not None
    put(cache, questions[2], b"1234")
    assert [cache.get(question) is not None for question in questions] == [True, False, True]


def test_an_answer_replaces_an_older_one() -> None:
    cache = AnswerCache(total_bytes=8)
    for answer in (b"1234", b"5678", b"9012"):
        put(cache, QUESTION, answer)
        assert cache.get(QUESTION) == answer
    other = replace(QUESTION, text=b"SELECT 2")
    put(cache, other, b"1234")
    assert cache.get(QUESTION) == b"9012"


def test_no_answer_from_before_a_change_is_kept() -> None:
    cache = AnswerCache()
    put(cache, QUESTION, b"old")
    running = cache.record(QUESTION, 60)
    running.add(b"old")
    cache.clear()
    running.end()
    assert cache.get(QUESTION) is None


@pytest.mark.parametrize(
    ("request_settings", "statement_settings", "ttl_s"),
    [
        ({}, {}, 0),
        ({"query_cache_ttl": "5"}, {}, 0),
        ({"use_query_cache": "1"}, {}, 60),
        ({}, {"use_query_cache": "1", "query_cache_ttl": "600"}, 600),
        ({"use_query_cache": "true", "query_cache_ttl": "5"}, {}, 5),
        ({"use_query_cache": "1"}, {"use_query_cache": "0"}, 0),
        ({"use_query_cache": "1", "query_cache_ttl": "soon"}, {}, 0),
        ({"use_query_cache": "1", "query_cache_ttl": "-1"}, {}, 0),
        ({"use_query_cache": "1", "query_cache_ttl": "nan"}, {}, 0),
        ({"use_query_cache": "1", "query_cache_ttl": "1e9"}, {}, 3600),
    ],
)
def test_the_time_of_an_answer_is_a_setting(
    request_settings: dict[str, str], statement_settings: dict[str, str], ttl_s: float
) -> None:
    assert ttl_of(request_settings, statement_settings) == ttl_s
