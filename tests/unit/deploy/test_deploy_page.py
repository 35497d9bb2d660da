"""The commands of docs/deploy.md run, or name files, images and processes that exist."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from chart import CHART, PROFILES, merged, profile, render, validate

from stepstream.cli.main import cli, run

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "deploy.md").read_text()


def commands(language: str) -> list[list[str]]:
    """Return the words of each command in blocks of a language."""
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.strip().splitlines()]


@pytest.mark.parametrize("words", commands("sh"), ids=" ".join)
def test_a_command_of_stepstream_runs(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert words[0] == "stepstream"
    assert run(words[1:]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("words", commands("console"), ids=" ".join)
def test_another_command_names_files_and_options_that_exist(words: list[str]) -> None:
    assert words[0] in ("docker", "helm", "openssl")
    for word in words:
        if word.startswith("infra/"):
            assert (ROOT / word).exists(), word
    if words[0] == "docker" and "stepstream" in words:
        parse(words[words.index("stepstream") + 1 :])
    if "exec" in words:
        services = yaml.safe_load((ROOT / "infra" / "deploy" / "compose.yaml").read_text())["services"]
        assert words[words.index("exec") + 1] in services


def parse(words: list[str]) -> None:
    """Parse a command line of `stepstream` without running it.

    Raises:
        click.UsageError: a command, argument or option does not exist.
    """
    command: click.Command = cli
    while isinstance(command, click.Group):
        context = command.make_context("stepstream", words, resilient_parsing=True)
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
    command.make_context("stepstream", words)


def test_the_example_values_give_valid_objects() -> None:
    (example,) = re.findall(r"^ *```yaml\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    for manifest in render(merged(profile("small-team"), yaml.safe_load(example))):
        validate(manifest)


def test_images_variables_and_profiles_of_the_page_exist() -> None:
    images = yaml.safe_load((CHART / "values.yaml").read_text())["image"]
    built = {words[words.index("--tag") + 1] for words in commands("console") if "--tag" in words}
    assert built == {images["services"], images["torch"]}
    compose = (ROOT / "infra" / "deploy" / "compose.yaml").read_text()
    for name in (
        "SEAL_MASTER_KEY",
        "PSEUDONYM_KEY",
        "CLICKHOUSE_PASSWORD",
        "STEPSTREAM_IMAGE",
        "STEPSTREAM_LEARNER_IMAGE",
    ):
        assert f"`{name}" in PAGE
        assert f"${{{name}:" in compose
    for name in PROFILES:
        assert f"profiles/{name}.yaml" in PAGE
