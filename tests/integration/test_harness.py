"""Test a harness version from its file to the calls of an agent that opts in, and its way back."""

import json
import uuid
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner
from gateway_fixtures import read_topic, write_key
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess
from waiting import TIMEOUT_S, wait_until

from stepstream.cli.harness import harness
from stepstream.config import Settings, environment_of

AGENT = f"agent-{uuid.uuid4().hex[:8]}"
OLD = [{"role": "system", "content": "Old."}, {"role": "user", "content": "2 + 2?"}]


class Commands:
    """`stepstream harness` for the agent."""

    def __init__(self, settings: Settings) -> None:
        self._environment = environment_of(settings)

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        options = ["--agent", AGENT, "--tenant", "acme", "--json"]
        result = CliRunner().invoke(harness, [*arguments, *options], env=self._environment)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if not code else result.output


def test_an_agent_that_opts_in_gets_the_versions_that_serve_it(
    gateway: ServiceProcess, registry_settings: Settings, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    run = Commands(registry_settings)
    keys = {opted: write_key(registry_settings, applies_harness=opted, tenant="acme") for opted in (False, True)}

    pinned: list[str | None] = []

    def ask(name: str, *, by_key: bool = True, **headers: str) -> Any:
        """Make a call; return the messages that the upstream got."""
        reply = httpx.post(
            f"http://127.0.0.1:{gateway.settings.gateway.port}/v1/chat/completions",
            json={"model": "demo", "messages": OLD},
            headers={"authorization": f"Bearer {keys[by_key]}", "x-stepstream-agent": AGENT}
            | ({"x-stepstream-trajectory": name} if name else {})
            | {key.replace("_", "-"): value for key, value in headers.items()},
            timeout=TIMEOUT_S,
        )
        if reply.status_code in (401, 503):  # the gateway has not read the new key yet, or no key
            return None
        assert reply.status_code == 200, reply.text
        pinned.append(reply.headers.get("x-stepstream-tool-versions"))
        return [message["content"] for message in upstream.requests[-1]["messages"]]

    def gets(*texts: str) -> bool:
        return bool(ask(str(uuid.uuid4())) == list(texts))

    wait_until(lambda: gets("Old.", "2 + 2?"))
    file = tmp_path / "harness.json"
    file.write_text(json.dumps({"instructions": "Be brief.", "tools": [{"name": "search", "version": "1"}]}))
    first = run("import", str(file), "--reason", "shorter answers")["version"]
    assert "exists in state proposed" in run("import", str(file), code=1)
    run("promote", first)
    wait_until(lambda: gets("Be brief.", "2 + 2?"))
    kept = str(uuid.uuid4())
    assert ask(kept) == ["Be brief.", "2 + 2?"]
    assert (pinned[0], pinned[-1]) == (None, "search=1")

    # Calls that did not opt in, or name no trajectory, stay unchanged.
    assert ask(str(uuid.uuid4()), by_key=False) == ["Old.", "2 + 2?"]
    assert ask(str(uuid.uuid4()), x_stepstream_apply_harness="false") == ["Old.", "2 + 2?"]
    assert ask("") == ["Old.", "2 + 2?"]
    assert ask(str(uuid.uuid4()), by_key=False, x_stepstream_apply_harness="true") == ["Be brief.", "2 + 2?"]

    exported = tmp_path / "exported.json"
    run("export", first, str(exported))
    content = json.loads(exported.read_text()) | {"examples": [{"messages": [{"role": "user", "content": "1 + 1?"}]}]}
    file.write_text(json.dumps(content))
    second = run("import", str(file))["version"]
    assert set(run("diff", first, second)) == {"examples"}
    assert [one["version"] for one in run("lineage", second)] == [second, first]
    run("canary", second, "--share", "1")
    wait_until(lambda: gets("Be brief.", "1 + 1?", "2 + 2?"))
    assert ask(kept) == ["Be brief.", "2 + 2?"]  # for its whole life
    name = str(uuid.uuid4())
    assert ask(name) == ["Be brief.", "1 + 1?", "2 + 2?"]
    run("rollback", "--reason", "no better")
    wait_until(lambda: gets("Be brief.", "2 + 2?"))
    assert ask(name) == ["Be brief.", "2 + 2?"]
    versions = {step["harness_version"] for step in read_topic(registry_settings, "steps", name, 2)}
    assert versions == {first, second}

    assert {one["version"]: one["serves"] for one in run("list")} == {first: "stable", second: ""}
    shown = run("show", second)
    assert (shown["state"], shown["reason"], shown["parents"]) == ("retired", "no better", [first])
    run("pin", first)
    assert "is pinned: unpin it first" in run("promote", second, code=1)
    metrics = httpx.get(f"http://127.0.0.1:{gateway.settings.gateway.port}/metrics").text
    assert 'stepstream_gateway_harness_calls_total{result="unnamed"} 1.0' in metrics
