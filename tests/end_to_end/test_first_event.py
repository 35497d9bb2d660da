"""What the README tells a newcomer to do works: a first event from Node, and from curl through the gateway."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepstream.config import Settings, environment_of
from stepstream.embedded.stack import Stack
from stepstream.jobs.storage.clickhouse import connect

README = Path(__file__).parents[2] / "README.md"
PROCESSES = (
    "broker",
    "registry",
    "store",
    "govern",
    "label",
    "measure",
    "store-writer",
    "worker",
    "gateway",
)

pytest_plugins = ["node_project"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def settings(loop_settings: Settings) -> Iterator[Settings]:
    with Stack(loop_settings, PROCESSES) as stack:
        yield stack.settings


def eventually(question: Callable[[], Any], timeout: float = 60.0) -> Any:
    """The first answer that is not empty."""
    deadline = time.monotonic() + timeout
    while not (answer := question()):
        assert time.monotonic() < deadline, "no answer in time"
        time.sleep(0.2)
    return answer


def row_of(settings: Settings, trajectory_id: str) -> dict[str, Any]:
    """The labelled trajectory in ClickHouse, once it is there."""
    client = connect(settings.clickhouse)
    try:
        query = f"SELECT * FROM {settings.clickhouse.database}.trajectories FINAL WHERE trajectory_id = {{id:String}}"
        rows = eventually(lambda: list(client.query(query, parameters={"id": trajectory_id}).named_results()))
    finally:
        client.close()
    return dict(rows[0])


def commands(settings: Settings) -> list[str]:
    """The README's curl commands, at this gateway's address."""
    blocks = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    (block,) = [block for block in blocks if "curl" in block]
    block = block.replace("http://127.0.0.1:8080", settings.fleet.gateway_url)
    return ["curl --fail --silent " + command for command in block.split("curl ")[1:]]


def test_first_events_are_labelled(settings: Settings, node_project: Path) -> None:
    done = subprocess.run(
        ["node", "publish.js"],
        cwd=node_project,
        env={**os.environ, **environment_of(settings)},
        capture_output=True,
        text=True,
        check=True,
    )
    trajectory_id = json.loads(done.stdout.splitlines()[0])["record"]["trajectory_id"]
    from_node = row_of(settings, trajectory_id)
    assert (from_node["steps"], from_node["success"], from_node["fidelity"]) == (3, True, "text")
    assert from_node["agent"] == "support-agent"

    for command in commands(settings):
        answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert json.loads(answer.stdout)
    from_curl = row_of(settings, "my-first")
    assert (from_curl["steps"], from_curl["success"], from_curl["fidelity"]) == (1, True, "token")
