"""Governing in a running job: policies as events, waiting where one cannot be applied, late keys, cut-off erasures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service_process import until
from stack_fixtures import changed
from stream_records import make_steps

from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.erasure import erasing, log
from stepstream.jobs.erasure.finding import Person
from stepstream.topics.codec import codec_of
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import new_message, new_policy
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.topics.seal_keys import master_of

MAIL = "ada@example.org"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = isolated(base_settings, tmp_path_factory.mktemp("governance"))
    settings = changed(settings, stack={"start_deadline_s": 240.0})
    with Stack(settings, ["broker", "registry", "govern"]) as running:
        yield running


class World:
    """What the tests say to the stack."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.settings = stack, stack.settings
        self.codec = codec_of(self.settings)
        self.producer = EventProducer(self.settings.kafka, self.codec, "test", linger_ms=0)

    def send(self, name: str, **fields: Any) -> None:
        mail = new_message(role="user", content=MAIL)
        [step] = make_steps(name, 1, messages=[mail], at_us=now_us(), **fields)
        self.producer.send("steps", name, step)
        self.producer.flush(20)

    def read(self, topic: str) -> list[Any]:
        events = []
        with EventConsumer(self.settings.kafka, self.codec) as consumer:
            consumer.follow([topic])
            while not consumer.caught_up():
                events += consumer.poll(1000, 0.1)
        return [event.record for event in events]

    def governed(self, name: str) -> Any:
        """The governed step of a trajectory, or None."""
        found = [record for record in self.read("governed-steps") if record["trajectory_id"] == name]
        return found[0] if found else None

    def command(self, *words: str, fails: int = 0) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "stepstream.cli.main", *words, "--json"],
            env={**os.environ, **environment_of(self.settings)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == fails, done.stderr + done.stdout
        return done.stderr if fails else json.loads(done.stdout)


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    made = World(stack)
    yield made
    made.codec.close()


@pytest.fixture
def policy(world: World, tmp_path: Path) -> Callable[..., Any]:
    """Applies a policy by the command line."""

    def apply(document: str, tenant: str, fails: int = 0) -> Any:
        file = tmp_path / "policy.toml"
        file.write_text(document)
        return world.command("policy", "apply", str(file), "--tenant", tenant, fails=fails)

    return apply


def test_a_policy_rules_from_its_version_on(world: World, policy: Callable[..., Any]) -> None:
    world.send("before", tenant="acme")
    until(lambda: world.governed("before"), 60)
    assert policy("[redaction.rules]\nemail = false", "acme")["version"] == 1
    until(lambda: governed_under(world, "acme") == 1, 60)
    assert "redaction.rules does not know mail" in policy("[redaction.rules]\nmail = false", "acme", fails=1)
    assert policy("", "acme")["version"] == 2
    assert [row["version"] for row in world.command("policy", "list") if row["tenant"] == "acme"] == [2]
    assert world.command("policy", "show", "--tenant", "acme")["document"] == ""
    before = world.governed("before")
    assert before["governed"]["policy_version"] == 0
    assert MAIL not in str(before)
    audit = [entry for entry in world.read("governance-audit") if entry["trajectory_id"] == "before"]
    assert [(entry["action"], entry["found"], entry["policy_version"]) for entry in audit] == [
        ("redacted", {"email": 1}, 0)
    ]


def governed_under(world: World, tenant: str) -> int:
    """The version under which a step that is sent now is governed."""
    name = new_event_id()
    world.send(name, tenant=tenant)
    until(lambda: world.governed(name), 60)
    return int(world.governed(name)["governed"]["policy_version"])


def test_events_wait_for_a_policy_that_can_be_applied(world: World, policy: Callable[..., Any]) -> None:
    broken = new_policy(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant="broken", version=1, document="[from_the_future]"
    )
    world.producer.send("policies", "broken", broken)
    world.producer.flush(20)
    pid = world.stack.pid("govern")
    said = world.settings.paths.data / "logs" / "govern.log"

    def complains() -> bool:
        world.send(new_event_id(), tenant="broken")
        return "version 1 of the policy of broken cannot be applied" in said.read_text()

    until(complains, 60, step=0.1)
    world.send("waits", tenant="broken")
    assert world.governed("waits") is None
    assert policy("", "broken")["version"] == 2
    until(lambda: world.governed("waits"), 60)
    assert world.governed("waits")["governed"]["policy_version"] == 2
    assert world.stack.pid("govern") == pid
    assert world.read("dead-letters") == []


def test_a_key_that_comes_after_the_erasure_is_destroyed(world: World) -> None:
    """As from the spool of a gateway that had no Kafka when its person was erased."""
    master = master_of(world.settings)
    assert master is not None
    subject = master.subject("default", "late")
    key = master.new_key("default", subject)
    log.decide(world.settings, "default", subject, "test")
    world.producer.send("subject-keys", key["key_id"], key)
    world.producer.flush(20)
    until(lambda: deleted(world, key["key_id"]), 60)


def deleted(world: World, key_id: str) -> bool:
    with EventConsumer(world.settings.kafka, world.codec) as consumer:
        consumer.follow(["subject-keys"])
        last = None
        while not consumer.caught_up():
            for event in consumer.poll(1000, 0.1):
                last = event.value if event.key == key_id else last
    return last == b""


class Cut(Exception):
    """The command died here."""


class NoStore:
    """A store without a row."""

    def query(self, query: str, parameters: Any = None) -> Any:
        rows = [(0,)] if "count()" in query else []
        return type("Result", (), {"result_rows": rows})()


@pytest.mark.parametrize("at", ["destroy", "delete_up_to"])
def test_an_erasure_that_was_cut_off_goes_on(world: World, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    user = f"cut-at-{at}"
    world.send(user, user=user)
    until(lambda: world.governed(user), 60)
    monkeypatch.setattr(log, "wait_until_read", lambda *_: None)

    def run() -> erasing.Erased:
        return erasing.erase(
            world.settings,
            NoStore(),
            Person("default", user),
            requested_by="t",
            wait_s=1,
            say=lambda _: None,  # type: ignore[arg-type]
        )

    with monkeypatch.context() as patch:
        patch.setattr(log, at, lambda *_: cut())
        with pytest.raises(Cut):
            run()
    done = run()
    assert done.trajectories == [user]
    assert done.records_unreadable == 2
    until(lambda: not world.governed(user)["messages"], 20)
    assert run().keys_destroyed == 0


def cut() -> None:
    raise Cut
