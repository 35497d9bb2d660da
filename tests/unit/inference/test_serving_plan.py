"""Test which versions a worker tries, and when it tries a refused one again."""

from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.inference.serving_plan import Refusals, versions_to_try
from stepstream.versions.rollouts import ServedVersions

FOLLOWS = ServedVersions(5, newest=5)
FIXED = ServedVersions(2, canary=4, canary_share=0.1, newest=5, follows_newest=False)
PUBLISHED: dict[int, int | None] = dict.fromkeys([1, 2, 4, 5])


def test_a_worker_without_a_version_tries_the_newest_first() -> None:
    assert versions_to_try(FOLLOWS, "stable", None, PUBLISHED) == [5, 4, 2, 1]
    assert versions_to_try(FOLLOWS, "canary", None, PUBLISHED) == [5, 4, 2, 1]
    assert versions_to_try(ServedVersions(None), "stable", None, {}) == []


def test_a_worker_does_not_go_back_while_it_follows() -> None:
    assert versions_to_try(FOLLOWS, "stable", 2, PUBLISHED) == [5, 4]
    assert versions_to_try(FOLLOWS, "stable", 5, PUBLISHED) == []


def test_a_decided_version_has_no_substitute() -> None:
    assert versions_to_try(FIXED, "stable", 5, PUBLISHED) == [2]
    assert versions_to_try(FIXED, "stable", None, PUBLISHED) == [2]
    assert versions_to_try(FIXED, "canary", 2, PUBLISHED) == [4]
    canary = ServedVersions(5, canary=4, canary_share=0.1, newest=5)
    assert versions_to_try(canary, "canary", None, PUBLISHED) == [4]


def test_a_worker_without_a_version_serves_what_served_before_a_decided_one() -> None:
    published = {1: None, 2: 1, 3: 2, 4: 3, 7: None}
    decided = ServedVersions(4, previous_stable=7, newest=7, follows_newest=False)
    assert versions_to_try(decided, "stable", None, published) == [4, 7, 3, 2, 1]
    assert versions_to_try(decided, "canary", None, published) == [4, 7, 3, 2, 1]
    assert versions_to_try(decided, "stable", 3, published) == [4]
    del published[3]
    assert versions_to_try(decided, "stable", None, published) == [4, 7]
    canary = ServedVersions(4, canary=3, canary_share=0.1, previous_stable=2, newest=7, follows_newest=False)
    assert versions_to_try(canary, "canary", None, published) == [3]


@given(st.sets(st.integers(1, 9), min_size=1), st.none() | st.integers(1, 9))
def test_the_wanted_version_is_tried_first_unless_it_is_held(published: set[int], held: int | None) -> None:
    newest = max(published)
    tried = versions_to_try(ServedVersions(newest, newest=newest), "stable", held, dict.fromkeys(published))
    assert (tried == []) == (held == newest)
    assert tried[:1] in ([], [newest])
    assert tried == sorted(tried, reverse=True)


def test_a_refused_version_is_tried_again_later_and_at_a_new_event() -> None:
    refusals = Refusals()
    first, second = ("checkpoint", "rollout-1"), ("checkpoint", "rollout-2")
    assert refusals.may_try("stable", 3, first, 0)
    refusals.add("stable", 3, first, "digest", 0)
    assert not refusals.may_try("stable", 3, first, 29.9)
    assert refusals.may_try("stable", 3, first, 30)
    assert refusals.may_try("stable", 3, second, 0)
    assert refusals.may_try("canary", 3, first, 0)
    assert (refusals.reason("stable", 3, first), refusals.reason("stable", 3, second)) == ("digest", None)
    refusals.add("stable", 3, first, "digest", 30)
    assert not refusals.may_try("stable", 3, first, 89.9)
    for _ in range(20):
        refusals.add("stable", 3, first, "shape", 100)
    assert refusals.may_try("stable", 3, first, 700)
    assert refusals.reason("stable", 3, first) == "digest; when tried again: shape"
