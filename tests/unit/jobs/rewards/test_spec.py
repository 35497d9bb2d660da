"""What a specification may say, whose it is, what it measures, and which feedback counts."""

import re
from pathlib import Path
from typing import Any

import pytest
from stream_records import make_steps

from stepstream.config import SettingsError
from stepstream.jobs.rewards.builtin_components import count_malformed_calls, is_malformed, measure
from stepstream.jobs.rewards.counted_feedback import count_feedback, is_too_late
from stepstream.jobs.rewards.spec import (
    BUILTIN_SOURCES,
    Component,
    RewardSpec,
    SpecificationError,
    VersionedSpec,
    parse_spec,
)
from stepstream.jobs.rewards.spec_lookup import closest, next_version, parse_record
from stepstream.jobs.rewards.terms import components
from stepstream.topics.events import new_message, new_reward_specification, new_tool_call

EXAMPLES = Path(__file__).parents[4] / "examples" / "rewards"
PAGE = Path(__file__).parents[4] / "docs" / "rewards.md"
PART = "[[component]]\nname = 'a'\nfeedback = 'a'\n"
STEP = PART + "level = 'step'\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[component]]\nname='cap:a'\nfeedback='a'\n", "those of corrections"),
        ("[[component]]\nname='a'\nbuiltin='errors'\nsource='format'\n", "leave `source` out"),
        ("[[component]]\nname='a'\nbuiltin='errors'\nfinal_after_s=3\n", "leave `final_after_s` out"),
        ("[[component]]\nname='a'\nbuiltin='errors'\nlevel='step'\npotential=true\n", "a potential is feedback"),
        ("[[component]]\nname='a'\nbuiltin='joy'\n", "component.0.builtin is unknown: there are errors, tool_errors"),
        (PART + "potential = true\n", 'needs level = "step"'),
        (STEP + "potential = true\ntrajectory_bounds = [0, 1]\n", "use bounds"),
        (STEP + "potential = true\nguard = true\n", "cannot be a guard"),
        (PART + "trajectory_bounds = [0, 1]\n", 'needs level = "step"'),
        (STEP + "trajectory_bounds = [1, 2]\n", "must contain 0"),
        (PART + "required = true\n", "needs feedback and wait_s"),
        (PART + "wait_s = 3\n", "needs required = true"),
        (PART + "required = true\nwait_s = 3\nfinal_after_s = 2\n", "would be ignored"),
        (PART + "source = 'nobody'\n", "component.0.source"),
        (PART + "weight = inf\n", "finite"),
        ("[[component]]\nname='a'\nfeedback='shadow.a'\nweight=0.0\n", "must not count: set shadow = true"),
        ("[[component]]\nname='a'\nfeedback='shadow.a'\nshadow=true\noutcome=true\n", "must not count"),
        ("malformed_feedback = 'shadow.a'\n", "malformed_feedback: feedback named `shadow.…` must not count"),
        (PART + "colour = 1\n", "component.0.colour is unknown: there are name, feedback"),
        ("name = 'a b'\n", "name"),
        ("colour = 1\n", "colour is unknown: there are name, environments"),
        ("cap_malformed = true\n", "needs reward_bounds"),
        ("reward_bounds = [1, 0]\n", "the lower bound must be below"),
    ],
)
def test_a_fault_is_told_with_what_to_do(text: str, fault: str) -> None:
    with pytest.raises(SpecificationError) as reported:
        parse_spec(text)
    assert fault in str(reported.value)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_examples_can_be_put_up(file: Path) -> None:
    spec = parse_spec(file.read_text("utf-8"))
    assert spec.name == file.stem
    assert spec.cap_malformed


def test_the_page_shows_specifications_that_can_be_put_up() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert [parse_spec(block).name for block in blocks] == ["support"]
    for name in {*Component.model_fields, *RewardSpec.model_fields, *BUILTIN_SOURCES} - {"component"}:
        assert re.search(rf"`{name}`|^{name} = ", PAGE.read_text("utf-8"), re.MULTILINE), name


def test_the_closest_specification_rules() -> None:
    def declared(name: str, environments: list[str], agents: list[str]) -> VersionedSpec:
        return VersionedSpec(
            RewardSpec.model_validate({"name": name, "environments": environments, "agents": agents}), 1
        )

    known = [
        declared("all", ["*"], ["*"]),
        declared("shops", ["shop-*"], ["*"]),
        declared("shop-1", ["shop-1", "shop-10"], ["*"]),
        declared("ann", ["*"], ["ann"]),
        declared("again", ["shop-*"], ["*"]),
        declared("nobody", [], ["*"]),
    ]

    def ruling(environment: str, agent: str) -> str:
        found = closest(known, environment, agent)
        assert found is not None
        return found.spec.name

    assert [ruling("bank", "x"), ruling("shop-2", "x"), ruling("shop-1", "x")] == ["all", "again", "shop-1"]
    assert ruling("shop-1", "ann") == "ann"
    assert closest(known[1:3], "bank", "x") is None


def test_versions_rise_by_name_and_what_cannot_be_read_stops_the_job() -> None:
    record = new_reward_specification(
        event_id="r", occurred_at_us=0, name="a", version=3, digest="", document="name = 'a'\ngamma = 2\n"
    )
    assert (next_version({"a": record}, "a"), next_version({"a": record}, "b")) == (4, 1)
    with pytest.raises(SettingsError, match="version 3 of reward specification 'a' cannot be read: gamma"):
        parse_record(record)
    assert parse_record({**record, "document": "name = 'a'\n"}).version == 3


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ({"arguments": '{"input": "a"}'}, False),
        ({"arguments": ""}, False),
        ({"arguments": '{"input": "a"}', "error": "Timeout"}, False),
        ({"arguments": '{"input": '}, True),
        ({"arguments": '["a"]'}, True),
        ({"arguments": '{"a": ' + "[" * 100_000}, True),
        ({"arguments": "{}", "error": "invalid_arguments"}, True),
        ({"arguments": "{}", "error": "unknown_tool"}, True),
        ({"arguments": "{}", "name": " "}, True),
    ],
)
def test_a_malformed_call_is_another_thing_than_a_failed_one(call: dict[str, Any], wrong: bool) -> None:
    assert is_malformed(new_tool_call(**({"call_id": "1", "name": "get"} | call))) is wrong


def test_what_is_measured_on_a_step() -> None:
    [step] = make_steps("t", 1)
    assert measure("certainty", {**step, "response_logprobs": [-0.5, -1.5]}, 0) == pytest.approx(0.36787944)
    assert measure("certainty", {**step, "response_logprobs": []}, 0) is None
    assert measure("valid_calls", step, 0) == 1.0
    assert measure("malformed_calls", step, 2) == 2.0  # the environment told of them
    text: Any = {**step, "response": new_message(role="assistant", content='<tool_call>{"name": "get"</tool_call>')}
    assert count_malformed_calls(text) == 1
    assert measure("valid_calls", text, 0) == 0.0
    for name, field in (
        ("cost_usd", "cost_usd"),
        ("seconds", "duration_ms"),
    ):  # nobody earns by less than 0
        assert measure(name, {**step, field: -5.0}, 0) == 0.0  # type: ignore[arg-type, misc]
    question: Any = {**step, "response": new_message(role="assistant", content="Which one? ")}
    assert [measure("clarifying_questions", one, 0) for one in (question, step)] == [1.0, 0.0]
    assert measure("valid_calls", question, 0) is None


def signal(name: str, value: float | None, number: str, **fields: Any) -> dict[str, Any]:
    who = {"id": number, "source_id": number, "source": "user", "producer": "verify/1", "consent": "train"}
    return {"name": name, "value": value, "step": None, "at": 0, "arrived": 0, "retracts": None, **who} | fields


def test_feedback_counts_until_its_component_is_final() -> None:
    spec = parse_spec(PART + "final_after_s = 10\n[[component]]\nname = 'b'\nfeedback = 'b'\n")
    early = [signal("a", 0.0, "1", arrived=1_000), signal("b", 0.0, "2", arrived=1_000)]
    late = [signal("a", 1.0, "3", arrived=20_000, at=9), signal("b", 1.0, "4", arrived=20_000, at=9)]
    counted = count_feedback(spec, [*early, *late], 5_000)
    assert [[one["id"] for one in counted.by_component[name]] for name in "ab"] == [["1"], ["2", "4"]]
    assert [is_too_late(spec, one, 5_000) for one in (*early, *late)] == [False, False, True, False]
    # So does taking it back.
    back = signal("a", None, "5", retracts="1", arrived=20_000)
    assert [one["id"] for one in count_feedback(spec, [*early, back], 5_000).by_component["a"]] == ["1"]
    assert count_feedback(spec, [*early, {**back, "arrived": 15_000}], 5_000).by_component["a"] == []
    terms = components(spec, make_steps("t", 1), counted, complete=True)[0]
    assert {term["name"]: term["final"] for term in terms} == {"a": True, "b": False}
    [term] = components(spec, make_steps("t", 1), count_feedback(spec, early[:1], 5_000), complete=True)[0]
    assert term["final"] is False


def test_feedback_of_another_source_than_the_declared_one_does_not_count() -> None:
    spec = parse_spec(PART + "source = 'test'\n")
    counted = count_feedback(spec, [signal("a", 1.0, "1"), signal("a", 0.0, "2", source="test")], 0)
    assert ([one["id"] for one in counted.by_component["a"]], counted.wrong_source) == (["2"], ("a",))


def test_a_step_component_is_lacking_until_every_step_has_it() -> None:
    spec = parse_spec(STEP + "required = true\nwait_s = 5\n")
    one, two = signal("a", 1.0, "1", step=0), signal("a", 1.0, "2", step=1)
    assert count_feedback(spec, [one], 0).missing(spec, range(2)) == ["a"]
    assert count_feedback(spec, [one, two], 0).missing(spec, range(2)) == []


def test_feedback_tells_of_a_malformed_call_that_the_record_does_not_show() -> None:
    spec = parse_spec("reward_bounds = [-1.0, 1.0]\ncap_malformed = true\n")
    won = signal("outcome", 1.0, "1")
    [terms] = components(
        spec, make_steps("t", 1), count_feedback(spec, [won, signal("malformed_call", 1.0, "2")], 0), complete=True
    )
    assert [(term["name"], term["value"], term["kind"]) for term in terms] == [
        ("outcome", 1.0, "term"),
        ("cap:malformed", -2.0, "guard"),
    ]
