"""Test the tokens of a step as the timeline shows them, and where they are looked for."""

from sample_records import T0_US, step

from stepstream.services.console.trajectories.tokens import Place, token_rows


def test_each_token_has_its_logprob_and_the_version_of_its_span() -> None:
    assert token_rows(step()) == [
        {"id": 4, "logprob": -0.5, "model": "demo", "version": 3, "masked": False},
        {"id": 5, "logprob": -0.25, "model": "demo", "version": 4, "masked": False},
    ]


def test_tokens_outside_the_spans_and_the_mask_say_so() -> None:
    bare = step(response_token_ids=[7, 8], response_logprobs=[], policy_spans=[], loss_mask=[True, False])
    assert [(row["logprob"], row["version"], row["masked"]) for row in token_rows(bare)] == [
        (None, None, False),
        (None, None, True),
    ]


def test_a_step_is_looked_for_near_its_time_and_then_near_its_label() -> None:
    [begin] = Place("default", "t", "e", T0_US, T0_US + 1_000_000).begins_us()
    assert begin < T0_US
    later = list(Place("default", "t", "e", T0_US, T0_US + 86_400_000_000).begins_us())
    assert len(later) == 2
    assert T0_US < later[1] < T0_US + 86_400_000_000
