"""Foreign files become valid steps and feedback, or are rejected; no file raises another error."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepstream.cli.dataset_import import check_episode
from stepstream.datasets import FORMATS, Episode, InvalidDocument, Origin
from stepstream.datasets.files import read_documents
from stepstream.datasets.messages import from_chat
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step

DATA = Path(__file__).parents[2] / "data" / "datasets"
AT_US = 1_760_000_000_000_000
NOW_US = 1_790_000_000_000_000
ORIGIN = Origin(dataset="d", at_us=AT_US, consent="train", tenant="acme", agent="someone", version=4)


KEYS = (
    "messages role content tool_calls metadata stepstream version all steps schema_version source observation results "
    "class_ id details function kwargs action reward is_last weight input preferred_output metrics logprobs consent "
    "completion_token_ids prompt_token_ids timestamp feedback extra"
)
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS.split(" ")), inner, max_size=5)
    ),
    max_leaves=12,
)
_answer = {"role": "assistant", "content": "Hello", "source": "agent", "message": "", "class_": "message_action"}
_VALID: dict[str, dict[str, Any]] = {
    "adp": {"id": "1", "content": [_answer]},
    "atif": {"schema_version": "ATIF-v1.7", "steps": [_answer]},
    "chat": {"messages": [_answer]},
    "rlds": {"steps": [{"action": "wave"}]},
}


def read(name: str, file: str, origin: Origin = ORIGIN) -> list[Episode]:
    return [episode for place in read_documents(DATA / file) for episode in FORMATS[name].read(place.document, origin)]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("adp", "adp.json"),
        ("atif", "atif.json"),
        ("chat", "chat.jsonl"),
        ("chat", "preferences.jsonl"),
        ("rlds", "rlds.jsonl"),
    ],
)
def test_episodes_pass_the_checks_of_govern_and_have_stable_ids(name: str, file: str) -> None:
    episodes = read(name, file)
    for episode in episodes:
        for record in [*episode.steps, *episode.feedback]:
            check_envelope(record, episode.trajectory_id.encode(), NOW_US, 0)
            assert (record["tenant"], record["consent"]) == ("acme", "train")
        for step in episode.steps:
            check_step(step)
        for feedback in episode.feedback:
            check_feedback(feedback)
        assert [step["step_index"] for step in episode.steps] == list(range(len(episode.steps)))
        assert [step["end"] for step in episode.steps[:-1]] == ["open"] * (len(episode.steps) - 1)
        assert episode.steps[-1]["end"] != "open"
    assert read(name, file) == episodes
    ids = [record["event_id"] for episode in episodes for record in [*episode.steps, *episode.feedback]]
    elsewhere = read(name, file, Origin(dataset="other", at_us=AT_US, consent="train"))
    others = [record["event_id"] for episode in elsewhere for record in [*episode.steps, *episode.feedback]]
    assert len({*ids, *others}) == 2 * len(ids)


@pytest.mark.parametrize(
    ("name", "file"), [("adp", "adp.json"), ("atif", "atif.json"), ("chat", "chat.jsonl"), ("rlds", "rlds.jsonl")]
)
def test_a_document_without_consent_is_rejected(name: str, file: str) -> None:
    with pytest.raises(InvalidDocument, match="give --consent"):
        read(name, file, Origin(dataset="d", at_us=AT_US))


def test_atif_fields_are_converted() -> None:
    [episode] = read("atif", "atif.json")
    first, second = episode.steps
    assert (first["trajectory_id"], first["agent"], first["harness_version"]) == ("d/run-7", "coder", "2.1")
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["occurred_at_us"] == 1_772_359_200_250_000
    assert first["response"]["reasoning"] == "Look before changing."
    assert (first["model"], second["model"]) == ("gpt-5", "gpt-5-mini")
    assert [message["tool_call_id"] for message in second["messages"]] == ["c1", "c2"]
    assert second["response"]["tool_calls"][0]["result"] == "written"
    assert (second["prompt_shared_messages"], second["prompt_shared_tokens"]) == (3, 8)
    assert (second["prompt_token_ids"], second["response_token_ids"]) == ([9, 10], [11])
    assert second["policy_spans"] == [{"start": 0, "end": 1, "model": "gpt-5-mini", "version": 4}]
    assert episode.omitted == {"tool_definitions", "content of type image"}
    [without] = read("atif", "atif.json", Origin(dataset="d", at_us=AT_US, consent="train"))
    assert [step["fidelity"] for step in without.steps] == ["text", "text"]
    assert any("policy version" in name for name in without.omitted)


def test_atif_sub_agents_are_children_of_the_step_that_called_them() -> None:
    child = {
        "schema_version": "ATIF-v1.7",
        "trajectory_id": "child",
        "agent": {"name": "searcher", "version": "1"},
        "steps": [{"step_id": 1, "source": "agent", "message": "found"}],
    }
    parent = orjson.loads((DATA / "atif.json").read_bytes())
    parent["steps"][3]["observation"]["results"][0]["subagent_trajectory_ref"] = [{"trajectory_id": "child"}]
    [outer, inner] = FORMATS["atif"].read(parent | {"subagent_trajectories": [child]}, ORIGIN)
    [step] = inner.steps
    assert (step["trajectory_id"], step["agent"]) == ("d/child", "searcher")
    assert (step["parent_trajectory_id"], step["parent_step_index"]) == (outer.trajectory_id, 1)


def test_adp_fields_are_converted() -> None:
    files, web = read("adp", "adp.json")
    looks, opens, says = files.steps
    [call] = looks["response"]["tool_calls"]
    assert (looks["response"]["content"], call["name"], call["arguments"]) == (
        "I look around.",
        "bash",
        '{"code":"ls"}',
    )
    assert [call["name"] for call in opens["response"]["tool_calls"]] == ["open", "stat"]
    assert [message["tool_call_id"] for message in says["messages"]] == ["call_000002", "call_000003"]
    assert files.rewards == {0: 0.25, 2: 1.0}
    assert [(item["name"], item["step_index"], item["value"]) for item in files.feedback] == [
        ("reward", 0, 0.25),
        ("reward", 2, 1.0),
    ]
    assert files.omitted == {"details.dataset"}
    assert web.steps[0]["messages"][0]["content"] == "button 'Buy'"


def test_rlds_fields_are_converted() -> None:
    text, numbers = read("rlds", "rlds.jsonl")
    assert [step["response"]["content"] for step in text.steps] == ["open chest", "unlock door"]
    assert (text.trajectory_id, text.steps[-1]["end"], text.rewards) == ("d/12", "terminated", {0: 0.0, 1: 1.0})
    [step] = numbers.steps
    assert (step["messages"][0]["content"], step["response"]["content"], step["end"]) == (
        "[0.5,1.5]",
        "[0,1]",
        "truncated",
    )
    assert numbers.omitted == {"metadata seed", "metadata speed of steps", "messages after the last answer"}


def test_chat_fields_are_converted() -> None:
    tools, examples, parts = read("chat", "chat.jsonl")
    assert [step["finish_reason"] for step in tools.steps] == ["tool_calls", "stop"]
    assert orjson.loads(tools.steps[0]["tool_definitions"] or "")[0]["function"]["name"] == "calculate"
    assert (tools.omitted, tools.steps[1]["tool_definitions"], tools.feedback) == (set(), None, [])
    [step] = examples.steps
    assert [message["role"] for message in step["messages"]] == ["user", "assistant", "user"]
    assert step["response"]["content"].endswith("Jupiter.")
    assert parts.steps[0]["messages"][0]["content"] == "Which is the capital of Austria?"


@pytest.mark.parametrize(
    "fields", [{"refusal": "I will not"}, {"content": [{"type": "refusal", "refusal": "I will not"}]}]
)
def test_a_refusal_is_the_content_of_the_response(fields: dict[str, Any]) -> None:
    omitted: set[str] = set()
    assert (from_chat({"role": "assistant", "content": None, **fields}, omitted)["content"], omitted) == (
        "I will not",
        set(),
    )


@pytest.mark.parametrize(
    ("name", "fields", "omitted"),
    [
        (
            "chat",
            {"score": 1, "metadata": {"id": "1", "source": "web"}, "functions": None},
            {"score", "metadata.source"},
        ),
        ("adp", {"available_apis": ["f"], "details": {"dataset": "x"}}, {"available_apis", "details.dataset"}),
        ("atif", {"notes": "x", "final_metrics": {"total_steps": 1}, "extra": {"a": 1}}, {"notes", "extra.a"}),
        ("atif", {"steps": [{"source": "agent", "message": "x", "extra": {"b": 1}}]}, {"extra.b of steps"}),
    ],
)
def test_unsupported_fields_are_listed(name: str, fields: dict[str, Any], omitted: set[str]) -> None:
    [episode] = FORMATS[name].read(_VALID[name] | fields, ORIGIN)
    assert episode.omitted == omitted


def test_the_text_of_a_custom_tool_is_an_argument() -> None:
    call = {"id": "1", "type": "custom", "custom": {"name": "run", "input": "1+1"}}
    [converted] = from_chat({"role": "assistant", "content": None, "tool_calls": [call]}, set())["tool_calls"]
    assert (converted["name"], converted["arguments"]) == ("run", '{"input":"1+1"}')


def test_preferences_are_two_attempts_of_one_group() -> None:
    better, worse = read("chat", "preferences.jsonl")
    assert better.steps[0]["group_id"] == worse.steps[0]["group_id"]
    assert better.steps[0]["response"]["content"].startswith("Good morning")
    outcomes = [(item["name"], item["value"], item["category"]) for each in (better, worse) for item in each.feedback]
    assert outcomes == [("outcome", 1.0, "preferred"), ("outcome", 0.0, "non_preferred")]


def test_the_given_outcome_applies_to_documents_without_one() -> None:
    given = replace(ORIGIN, outcome=0.5)
    for episode in [*read("chat", "chat.jsonl", given), *read("atif", "atif.json", given)]:
        [outcome] = episode.feedback
        assert (outcome["name"], outcome["value"], outcome["step_index"], outcome["source"]) == (
            "outcome",
            0.5,
            None,
            "user",
        )
    assert [each.feedback[0]["value"] for each in read("chat", "preferences.jsonl", given)] == [1.0, 0.0]


@pytest.mark.parametrize("name", sorted(FORMATS))
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(document=_json)
def test_any_json_is_read_or_rejected(name: str, document: Any) -> None:
    """Also as fields of a valid document."""
    rejected = []
    for candidate in (
        document,
        _VALID[name] | document if isinstance(document, dict) else {**_VALID[name], "extra": document},
    ):
        try:
            for episode in FORMATS[name].read(candidate, ORIGIN):
                check_episode(episode)
        except InvalidDocument as error:
            rejected.append(str(error))
    assert all(rejected)


@pytest.mark.parametrize("place", ["all", "feedback", "steps", "rewards", "version"])
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(value=_json)
def test_any_extension_is_read_or_rejected(place: str, value: Any) -> None:
    document = _VALID["chat"] | {"metadata": {"stepstream": {"version": 1, "all": {}, "steps": [{}]} | {place: value}}}
    rejected = []
    try:
        for episode in FORMATS["chat"].read(document, ORIGIN):
            check_episode(episode)
    except InvalidDocument as error:
        rejected.append(str(error))
    assert all(rejected)
