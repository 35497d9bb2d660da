"""The inspect fold searches the sampled trajectories, reports only numbers, and holds a trajectory once."""

from types import SimpleNamespace
from typing import Any

from fold_harness import FoldRun, MemoryState, state_added, state_removed
from stream_records import as_governed, make_steps

from stepstream.jobs.governance.inspect_fold import JOB, InspectFold, is_sampled, searched_texts
from stepstream.jobs.runtime.expiry import Expiry
from stepstream.topics.catalogue import GOVERNED_STEPS as STEPS
from stepstream.topics.events import new_message, new_tool_call


class OneName:
    """Recognises one name."""

    def count_names(self, texts: Any) -> int:
        return sum(text.count("Ada Lovelace") for text in texts)


AT_MS, DAY_MS = 1_760_000_100_000, 86_400_000


def inspect_run(share: float = 1.0, hold: bool = True, most: int = 100) -> FoldRun:
    inspection, state = SimpleNamespace(share=share, hold=hold), MemoryState()
    held = Expiry(state, 37, most)  # type: ignore[arg-type]
    return FoldRun(JOB, InspectFold(lambda tenant: (3, inspection), OneName(), held), state)


def holds(run: FoldRun, name: str, day: int) -> int:
    """Feed a step with a name on a day; return the number of holds."""
    [step] = steps_with(name, "Ada Lovelace")
    return sum(topic == "curation" for topic, _, _ in run.feed([run.record(STEPS, step, at_ms=AT_MS + day * DAY_MS)]))


def steps_with(name: str, text: str, count: int = 1) -> list[Any]:
    return [
        as_governed(step | {"messages": [new_message(role="user", content=text)]}) for step in make_steps(name, count)
    ]


def test_names_are_reported_by_number_and_hold_the_trajectory_once() -> None:
    run = inspect_run()
    outputs = run.feed([run.record("governed-steps", step) for step in steps_with("t", "I am Ada Lovelace", 2)])
    assert [topic for topic, _, _ in outputs] == ["governance-audit", "curation", "governance-audit"]
    assert {key for _, key, _ in outputs} == {"t"}
    audit, hold = outputs[0][2], outputs[1][2]
    assert (audit["action"], audit["found"], audit["policy_version"], audit["job"]) == (
        "inspected",
        {"name": 1},
        3,
        JOB,
    )
    assert (hold["action"], hold["reason"], hold["by"]) == ("hold", "names", JOB)
    assert "Ada" not in str(outputs)


def test_a_held_trajectory_expires_after_its_newest_step() -> None:
    added, removed = state_added("trajectory"), state_removed("trajectory", "age")
    run = inspect_run()
    assert [holds(run, "t", day) for day in (0, 30)] == [1, 0]
    for day, is_held in ((60, True), (68, False)):
        run.tick(AT_MS + day * DAY_MS)
        assert bool(run.state.content) is is_held
    assert (state_added("trajectory") - added, state_removed("trajectory", "age") - removed) == (1, 1)
    assert holds(run, "t", 69) == 1


def test_the_oldest_held_trajectories_make_room_for_new_ones() -> None:
    removed = state_removed("trajectory", "cap")
    run = inspect_run(most=2)
    assert [holds(run, name, day) for day, name in enumerate("abca")] == [1, 1, 1, 0]
    run.tick(AT_MS + 3 * DAY_MS)
    assert state_removed("trajectory", "cap") - removed == 1
    assert [holds(run, name, 3) for name in "acb"] == [0, 0, 1]


def test_a_step_without_names_is_reported_and_not_held() -> None:
    run = inspect_run()
    [(topic, _, audit)] = run.feed([run.record("governed-steps", steps_with("t", "what is next?")[0])])
    assert (topic, audit["found"]) == ("governance-audit", {})


def test_the_policy_sets_the_share_and_the_hold() -> None:
    run = inspect_run(hold=False)
    assert len(run.feed([run.record("governed-steps", steps_with("t", "Ada Lovelace")[0])])) == 1
    run = inspect_run(share=0.0)
    assert run.feed([run.record("governed-steps", steps_with("t", "Ada Lovelace")[0])]) == []


def test_the_sample_has_the_configured_share_and_grows_with_it() -> None:
    names = [f"trajectory-{number}" for number in range(4000)]
    share = sum(is_sampled(name, 0.1) for name in names) / len(names)
    assert 0.08 < share < 0.12
    assert all(is_sampled(name, 1.0) for name in names)
    assert all(is_sampled(name, 0.5) for name in names if is_sampled(name, 0.1))


def test_every_text_is_searched_without_pseudonyms() -> None:
    call = new_tool_call(call_id="1", name="mail", arguments='{"to": "Grace"}', result="sent", error="E")
    step = steps_with("t", "x")[0]
    step["response"] = new_message(
        role="assistant", content="<EMAIL:0123456789ab> ok", reasoning="hm", tool_calls=[call]
    )
    assert {" ok", "hm", "mail", '{"to": "Grace"}', "sent", "E"} <= set(searched_texts(step))
