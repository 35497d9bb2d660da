"""Build the example of each language, publish a trajectory with it, and read its label."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
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


CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepstream/rust-example"
"""Cargo's products, kept between runs as Go's and Maven's are: a fresh build takes 90 CPU seconds."""
LIBRARIES = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"


def output_of(command: tuple[str, ...], folder: Path, **options: Any) -> str:
    """Run a command and return its output; fail the test with its errors."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False, **options)
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Language(NamedTuple):
    """Commands that build and run an example; `{work}` is the folder of its products."""

    tools: tuple[str, ...]
    build: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]
    steps: int = 3
    prepare: Callable[[Path], None] | None = None
    """Called with `{work}` before the build."""
    environment: Mapping[str, str] = {}


def link_librdkafka(work: Path) -> None:
    """Write cargo's settings so that rdkafka links the library of confluent-kafka's wheel; building it takes a minute.

    The paths in these settings stay the same from run to run: cargo builds everything anew when they change.
    """
    work.mkdir()
    settings = work / "cargo.toml"
    settings.touch()
    CACHE.mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES.glob("librdkafka-*.so.*"):  # a wheel for Linux has one
        link = work / "librdkafka.so"
        link.symlink_to(library)
        link.rename(CACHE / link.name)
        host = output_of(("rustc", "-vV"), work).partition("host: ")[2].split()[0]
        settings.write_text(
            f"""
            [target.{host}.rdkafka]
            rustc-link-lib = ["rdkafka"]
            rustc-link-search = ["native={CACHE}"]
            """
        )


FAST_GO = ("-gcflags=all=-N -l", "-ldflags=-s -w")
"""Flags of Go that neither optimise nor write symbols: a fresh build takes 41 instead of 66 CPU seconds."""
LANGUAGES = {
    "go": Language(("Go",), (("go", "build", *FAST_GO, "-o", "{work}/agent", "."),), ("{work}/agent",)),
    "rust": Language(
        ("Rust",),
        (("cargo", "build", "--quiet", "--target-dir", f"{CACHE}/target", "--config", "{work}/cargo.toml"),),
        (f"{CACHE}/target/debug/support-agent",),
        prepare=link_librdkafka,
        environment={"LD_LIBRARY_PATH": str(LIBRARIES)},
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
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Settings]:
    wired = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("examples")))
    with Stack(wired, ["broker", "registry", "govern", "label"]) as stack:
        yield stack.settings


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds a language's example once and returns the folder of its products."""

    @cache
    def build(name: str) -> Path:
        language = LANGUAGES[name]
        require_tool(*language.tools)
        work = tmp_path_factory.mktemp(name) / "build"
        if language.prepare is not None:
            language.prepare(work)
        for command in language.build:
            output_of(placed(command, work), EXAMPLES / name)
        return work

    return build


def placed(command: tuple[str, ...], work: Path) -> tuple[str, ...]:
    """Return a language's command with its folder."""
    return tuple(word.replace("{work}", str(work)) for word in command)


@pytest.mark.parametrize("name", [name for name, language in LANGUAGES.items() if language.build])
def test_the_example_builds(built: Callable[[str], Path], name: str) -> None:
    """Build all examples before the stack starts, so that it does not idle meanwhile."""
    built(name)


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_examples_trajectory_is_labelled(built: Callable[[str], Path], name: str, settings: Settings) -> None:
    language = LANGUAGES[name]
    environment = {**os.environ, **environment_of(settings), **language.environment}
    output = output_of(placed(language.run, built(name)), EXAMPLES / name, env=environment)
    check_labelled(settings, output, language.steps)


def test_the_node_example_is_labelled(node_project: Path, settings: Settings) -> None:
    output = output_of(("node", "publish.js"), node_project, env={**os.environ, **environment_of(settings)})
    events = [json.loads(line) for line in output.splitlines()]
    records = [{"topic": event["topic"], **event["record"]} for event in events]
    check_labelled(settings, "\n".join(json.dumps(record) for record in records), 3)


def check_labelled(settings: Settings, output: str, steps: int) -> None:
    """Assert that the events that an example printed became one complete, successful trajectory."""
    events = [json.loads(line) for line in output.splitlines()]
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
