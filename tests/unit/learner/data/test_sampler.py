"""Check that the choice of groups does not depend on arrival, and that caps hold."""

import math
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepstream.learner.data.sampler import Candidate, GroupSampler, union_signature


def candidate(
    name: str, lag: int = 0, *, uses: int = 0, tenant: str = "default", words: int | None = None
) -> Candidate:
    """A group; those of equal `words` are alike."""
    signature = None if words is None else np.full(128, words, dtype=np.int64)
    return Candidate(name, int(name[1:]), uses, lag, tenant, signature)


def names(choice: GroupSampler, candidates: list[Candidate], count: int, update: int = 1) -> list[str]:
    return [each.group_id for each in choice.choose(candidates, count, update)[0]]


def test_the_freshest_go_first_and_the_used_last() -> None:
    replay_buffer = [candidate("g0", 2), candidate("g1", 0, uses=1), candidate("g2", 1), candidate("g3", 1)]
    assert names(GroupSampler(), replay_buffer, 4) == ["g2", "g3", "g0", "g1"]


def test_a_weighted_draw_follows_the_weights() -> None:
    choice = GroupSampler(sampling="weighted", temperature=2.0)
    first = Counter(names(choice, [candidate("g0", 0), candidate("g1", 2)], 1, update)[0] for update in range(4000))
    expected = 1 / (1 + math.exp(-1.0))
    assert abs(first["g0"] / 4000 - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)


def test_each_update_has_its_own_reproducible_draw() -> None:
    choice, replay_buffer = GroupSampler(sampling="weighted"), [candidate(f"g{n}") for n in range(20)]
    draws = [tuple(names(choice, replay_buffer, 20, update)) for update in (1, 2, 1)]
    assert draws[0] == draws[2] != draws[1]
    assert tuple(names(GroupSampler(sampling="weighted", seed=1), replay_buffer, 20, 1)) != draws[0]


def test_a_tenant_takes_no_more_than_its_share() -> None:
    replay_buffer = [candidate(f"g{n}", tenant="big") for n in range(6)] + [candidate("g6", 3, tenant="small")]
    choice = GroupSampler(tenant_share=0.5)
    chosen, passed = choice.choose(replay_buffer, 4, 1)
    assert [each.group_id for each in chosen] == ["g0", "g1", "g6"]
    assert passed == dict.fromkeys(("g2", "g3", "g4", "g5"), "tenant_share")


def test_groups_nearly_alike_are_capped_and_those_without_a_signature_are_not() -> None:
    replay_buffer = [candidate("g0", words=1), candidate("g1", words=1), candidate("g2", words=2), candidate("g3")]
    chosen, passed = GroupSampler(near_duplicate_cap=1).choose(replay_buffer, 3, 1)
    assert [each.group_id for each in chosen] == ["g0", "g2", "g3"]
    assert passed == {"g1": "near_duplicate_cap"}


def test_the_signature_of_texts_together_is_the_smallest_at_each_place() -> None:
    together = union_signature([np.array([3, 1]), None, np.array([2, 5])])
    assert together is not None
    assert together.tolist() == [2, 1]
    assert union_signature([None]) is None


CANDIDATES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 2), st.sampled_from("abc"), st.sampled_from([None, 1, 2])),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        candidate(f"g{n}", lag, uses=uses, tenant=tenant, words=words)
        for n, (lag, uses, tenant, words) in enumerate(rows)
    ]
)
CHOICES = st.builds(
    GroupSampler,
    sampling=st.sampled_from(["freshest", "weighted"]),
    tenant_share=st.sampled_from([0.25, 0.5, 1.0]),
    near_duplicate_cap=st.integers(0, 2),
)


@given(CANDIDATES, CHOICES, st.integers(1, 8), st.integers(1, 5), st.randoms(use_true_random=False))
def test_order_of_arrival_changes_nothing_and_caps_hold(
    replay_buffer: list[Candidate], choice: GroupSampler, count: int, update: int, rng: Any
) -> None:
    chosen, passed = choice.choose(replay_buffer, count, update)
    shuffled = replay_buffer[:]
    rng.shuffle(shuffled)
    assert choice.choose(shuffled, count, update)[0] == chosen
    assert len(chosen) <= count
    tenants = Counter(each.tenant for each in chosen)
    assert all(times <= max(1, int(choice.tenant_share * count)) for times in tenants.values())
    if choice.near_duplicate_cap:
        kinds = Counter(int(each.signature[0]) for each in chosen if each.signature is not None)
        assert all(times <= choice.near_duplicate_cap for times in kinds.values())
    assert not passed.keys() & {each.group_id for each in chosen}
    if not choice.has_caps:
        assert len(chosen) == min(count, len(replay_buffer))
