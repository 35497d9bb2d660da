"""Reward specifications: faults, examples and identity."""

import re
from pathlib import Path

import pytest
from reward_cases import SPEC, spec

from stepstream.config import SettingsError
from stepstream.jobs.rewards.spec import (
    BUILTIN_SOURCES,
    Component,
    RewardSpec,
    SpecificationError,
    load_spec,
    parse_spec,
)

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
def test_an_invalid_specification_is_rejected_with_a_remedy(text: str, fault: str) -> None:
    with pytest.raises(SpecificationError) as reported:
        parse_spec(text)
    assert fault in str(reported.value)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_the_examples_are_valid(file: Path) -> None:
    spec = parse_spec(file.read_text("utf-8"))
    assert spec.name == file.stem
    assert spec.cap_malformed


def test_the_specifications_in_the_docs_are_valid() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert [parse_spec(block).name for block in blocks] == ["support"]
    for name in {*Component.model_fields, *RewardSpec.model_fields, *BUILTIN_SOURCES} - {"component"}:
        assert re.search(rf"`{name}`|^{name} = ", PAGE.read_text("utf-8"), re.MULTILINE), name


def test_the_default_is_the_outcome_alone() -> None:
    default = load_spec(None)
    assert [component.name for component in default.component] == ["outcome"]
    assert default.identity().startswith("outcome@")


def test_another_weight_is_another_identity(tmp_path: Path) -> None:
    assert spec(tmp_path, SPEC).identity() != spec(tmp_path, SPEC.replace("0.5\nbounds", "0.6\nbounds")).identity()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("name = ", "not TOML"),
        ("[[component]]\nname='a'\n", "either feedback or builtin"),
        ("[[component]]\nname='a'\nfeedback='a'\nbounds=[1.0, 0.0]\n", "lower bound"),
        ("[[component]]\nname='a'\nbuiltin='errors'\noutcome=true\n", "an outcome is feedback"),
        ("[[component]]\nname='a'\nfeedback='a'\n[[component]]\nname='a'\nfeedback='b'\n", "same name"),
        ("[[component]]\nname='a'\nbuiltin='joy'\n", "builtin"),
        ("weights = 3\n", "weights"),
    ],
)
def test_a_wrong_specification_file_is_rejected(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        spec(tmp_path, text)


def test_a_missing_specification_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load_spec(tmp_path / "none.toml")
