"""The sampled search for names: which steps, what it tells, and that a release is not undone."""

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fold_harness import FoldRun, MemoryState
from required_tools import require_package
from stream_records import as_governed, make_steps

from stepstream.jobs.governance.inspect_fold import JOB, InspectFold, SpacyNames, sampled, searched
from stepstream.jobs.inspect import NoModel, recogniser_of
from stepstream.topics.events import new_message, new_tool_call


class Ada:
    """Knows one name."""

    def names(self, texts: Any) -> int:
        return sum(text.count("Ada Lovelace") for text in texts)


def inspect_run(share: float = 1.0, hold: bool = True) -> FoldRun:
    inspection = SimpleNamespace(share=share, hold=hold)
    return FoldRun(JOB, InspectFold(lambda tenant: (3, inspection), Ada()), MemoryState())


def told(name: str, text: str, count: int = 1) -> list[Any]:
    return [
        as_governed(step | {"messages": [new_message(role="user", content=text)]}) for step in make_steps(name, count)
    ]


def test_a_find_is_told_by_count_and_holds_the_trajectory_once() -> None:
    run = inspect_run()
    outputs = run.feed([run.record("governed-steps", step) for step in told("t", "I am Ada Lovelace", 2)])
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


def test_a_step_without_names_is_told_and_not_held() -> None:
    run = inspect_run()
    [(topic, _, audit)] = run.feed([run.record("governed-steps", told("t", "what is next?")[0])])
    assert (topic, audit["found"]) == ("governance-audit", {})


def test_the_policy_decides_about_holding_and_the_share() -> None:
    run = inspect_run(hold=False)
    assert len(run.feed([run.record("governed-steps", told("t", "Ada Lovelace")[0])])) == 1
    run = inspect_run(share=0.0)
    assert run.feed([run.record("governed-steps", told("t", "Ada Lovelace")[0])]) == []


def test_a_trajectory_is_in_the_sample_as_a_whole_and_the_share_is_kept() -> None:
    names = [f"trajectory-{number}" for number in range(4000)]
    share = sum(sampled(name, 0.1) for name in names) / len(names)
    assert 0.08 < share < 0.12
    assert all(sampled(name, 1.0) for name in names)
    assert all(sampled(name, 0.5) for name in names if sampled(name, 0.1))


def test_every_text_is_searched_without_pseudonyms() -> None:
    call = new_tool_call(call_id="1", name="mail", arguments='{"to": "Grace"}', result="sent", error="E")
    step = told("t", "x")[0]
    step["response"] = new_message(
        role="assistant", content="<EMAIL:0123456789ab> ok", reasoning="hm", tool_calls=[call]
    )
    assert {" ok", "hm", "mail", '{"to": "Grace"}', "sent", "E"} <= set(searched(step))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline that knows two names, saved as spaCy's models are."""
    require_package("spacy")
    spacy: Any = import_module("spacy")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PERSON", "pattern": "Ada Lovelace"}, {"label": "ORG", "pattern": "Acme"}])
    folder = tmp_path_factory.mktemp("model") / "names"
    pipeline.to_disk(folder)
    return Path(folder)


def test_a_spacy_model_by_its_folder(model: Path) -> None:
    recogniser = recogniser_of(str(model))
    assert recogniser.names(["Ada Lovelace works at Acme", "Ada Lovelace", ""]) == 2


def test_texts_longer_than_the_model_takes_are_cut(model: Path) -> None:
    recogniser = recogniser_of(str(model))
    assert isinstance(recogniser, SpacyNames)
    recogniser._pipeline.max_length = 40
    assert recogniser.names([f"{'x ' * 20}Ada Lovelace"]) == 1


def test_without_a_model_the_job_says_what_to_do() -> None:
    with pytest.raises(NoModel, match=r"inspect\.model is not set"):
        recogniser_of("")
    require_package("spacy")
    with pytest.raises(NoModel, match="cannot load no_such_model"):
        recogniser_of("no_such_model")
