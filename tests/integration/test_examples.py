"""Every language's example publishes a whole trajectory with its feedback, and sees it labelled."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from gateway_fixtures import read_topic
from required_tools import require_tool

from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack

EXAMPLES = Path(__file__).parents[2] / "examples"
BUILD_S = 900

pytest_plugins = ["node_project"]


def called(command: tuple[str, ...], folder: Path, **config: Any) -> str:
    """What a command prints; its errors are the test's failure."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False, **config)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Language(NamedTuple):
    """How an example is built and run; `{work}` is where its products go."""

    tools: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]
    steps: int = 3
    prepare: Callable[[Path], None] | None = None
    """Called with `{work}` before the build."""


def ready_librdkafka(work: Path) -> None:
    """Settings of cargo with which rdkafka links the library of confluent-kafka's wheel: building it takes a minute."""
    work.mkdir()
    settings = work / "cargo.toml"
    settings.touch()
    libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    for library in libraries.glob("librdkafka-*.so.*"):  # a wheel for Linux has one
        (work / "librdkafka.so").symlink_to(library)
        host = called(("rustc", "-vV"), work).partition("host: ")[2].split()[0]
        settings.write_text(
            f"""
            [target.{host}]
            rustflags = ["-C", "link-arg=-Wl,-rpath,{libraries}"]
            [target.{host}.rdkafka]
            rustc-link-lib = ["rdkafka"]
            rustc-link-search = ["native={work}"]
            """
        )


LANGUAGES = {
    "go": Language(("Go",), (("go", "build", "-o", "{work}/agent", "."),), ("{work}/agent",)),
    "rust": Language(
        ("Rust",),
        (("cargo", "build", "--quiet", "--target-dir", "{work}/target", "--config", "{work}/cargo.toml"),),
        ("{work}/target/debug/support-agent",),
        prepare=ready_librdkafka,
    ),
    "java": Language(
        ("Java",),
        (("mvn", "-q", "-B", "-Dbuild={work}", "package", "dependency:copy-dependencies"),),
        ("java", "-cp", "{work}/classes:{work}/dependency/*", "example.Main"),
    ),
    "shell": Language(("curl", "jq", "kcat"), (), ("./publish.sh",), steps=2),
}


@pytest.fixture(scope="module")
def settings(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Settings]:
    wired = with_topics(isolated(base_settings, tmp_path_factory.mktemp("examples")))
    with Stack(wired, ["broker", "registry", "govern", "label"]) as stack:
        yield stack.settings


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the example of a language at its first call; the folder of its products."""

    @cache
    def build(name: str) -> Path:
        language = LANGUAGES[name]
        require_tool(*language.tools)
        work = tmp_path_factory.mktemp(name) / "build"
        if language.prepare is not None:
            language.prepare(work)
        for command in language.build:
            called(placed(command, work), EXAMPLES / name)
        return work

    return build


def placed(command: tuple[str, ...], work: Path) -> tuple[str, ...]:
    """A command of a language with its folder."""
    return tuple(word.replace("{work}", str(work)) for word in command)


@pytest.mark.parametrize("name", [name for name, language in LANGUAGES.items() if language.build])
def test_it_is_built(built: Callable[[str], Path], name: str) -> None:
    """All of them before the stack that they are to speak to, which would idle meanwhile."""
    built(name)


@pytest.mark.parametrize("name", LANGUAGES)
def test_its_trajectory_is_labelled(built: Callable[[str], Path], name: str, settings: Settings) -> None:
    language = LANGUAGES[name]
    environment = {**os.environ, **environment_of(settings)}
    said = called(placed(language.run, built(name)), EXAMPLES / name, env=environment)
    check_labelled(settings, said, language.steps)


def test_the_node_example_is_labelled(node_project: Path, settings: Settings) -> None:
    said = called(("node", "publish.js"), node_project, env={**os.environ, **environment_of(settings)})
    events = [json.loads(line) for line in said.splitlines()]
    told = [{"topic": event["topic"], **event["record"]} for event in events]
    check_labelled(settings, "\n".join(json.dumps(event) for event in told), 3)


def check_labelled(settings: Settings, said: str, steps: int) -> None:
    """Whether what an example says that it published became one whole, successful trajectory."""
    events = [json.loads(line) for line in said.splitlines()]
    assert [event["topic"] for event in events] == ["steps"] * steps + ["feedback"]
    (trajectory_id,) = {event["trajectory_id"] for event in events}
    (label,) = read_topic(settings, "labeled-trajectories", trajectory_id, 1)
    assert (label["complete"], label["success"], label["end"]) == (True, True, "terminated")
    assert [step["step_index"] for step in label["steps"]] == list(range(steps))
    assert label["fidelity"] == "text"
    assert sum(tool["calls"] for tool in label["tools"]) == steps - 1
    assert all(tool["errors"] == 0 for tool in label["tools"])
    assert label["flags"] == ["fidelity:text"]
    sources = read_topic(settings, "governed-steps", trajectory_id, steps)
    assert [step["governed"]["source_event_id"] for step in sources] == [e["event_id"] for e in events[:-1]]
