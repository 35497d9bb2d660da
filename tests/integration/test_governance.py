"""Governing in a running job: policies as events, waiting where one cannot be applied, late keys, cut-off erasures."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stack_world import World
from stream_records import make_steps
from waiting import until

from stepstream.config import Settings
from stepstream.crypto.master_key import master_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.erasure import delete_from_log, erase
from stepstream.jobs.erasure.find_records import Person
from stepstream.topics.events import new_message, new_policy
from stepstream.topics.ids import new_event_id, now_us

MAIL = "ada@example.org"


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    settings = with_topics(isolated(base_settings, tmp_path_factory.mktemp("governance")))
    with Stack(settings, ["broker", "registry", "govern"]) as running:
        yield running


class Governed(World):
    """A stack that governs steps in which somebody is named."""

    def say(self, name: str, **fields: Any) -> None:
        """A trajectory of one step."""
        mail = new_message(role="user", content=MAIL)
        self.put("steps", *make_steps(name, 1, messages=[mail], at_us=now_us(), **fields))

    def governed(self, name: str) -> Any:
        """The governed step of a trajectory, or None."""
        found = [record for record in self.records("governed-steps") if record["trajectory_id"] == name]
        return found[0] if found else None


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[Governed]:
    with Governed(stack.settings) as opened:
        yield opened


@pytest.fixture
def policy(world: Governed, tmp_path: Path) -> Callable[..., Any]:
    """Applies a policy by the command line."""

    def apply(document: str, tenant: str, fails: bool = False) -> Any:
        file = tmp_path / "policy.toml"
        file.write_text(document)
        words = ("policy", "apply", str(file), "--tenant", tenant)
        return world.command(*words, fails=True) if fails else world.facts(*words)

    return apply


def test_a_policy_rules_from_its_version_on(world: Governed, policy: Callable[..., Any]) -> None:
    world.say("before", tenant="acme")
    until(lambda: world.governed("before"))
    assert policy("[redaction.rules]\nemail = false", "acme")["version"] == 1
    until(lambda: governed_under(world, "acme") == 1)
    assert "redaction.rules does not know mail" in policy("[redaction.rules]\nmail = false", "acme", fails=True)
    assert policy("", "acme")["version"] == 2
    assert [row["version"] for row in world.facts("policy", "list") if row["tenant"] == "acme"] == [2]
    assert world.facts("policy", "show", "--tenant", "acme")["document"] == ""
    before = world.governed("before")
    assert before["governed"]["policy_version"] == 0
    assert MAIL not in str(before)
    audit = [entry for entry in world.records("governance-audit") if entry["trajectory_id"] == "before"]
    assert [(entry["action"], entry["found"], entry["policy_version"]) for entry in audit] == [
        ("redacted", {"email": 1}, 0)
    ]


def governed_under(world: Governed, tenant: str) -> int:
    """The version under which a step that is sent now is governed."""
    name = new_event_id()
    world.say(name, tenant=tenant)
    until(lambda: world.governed(name))
    return int(world.governed(name)["governed"]["policy_version"])


def test_events_wait_for_a_policy_that_can_be_applied(
    stack: Stack, world: Governed, policy: Callable[..., Any]
) -> None:
    broken = new_policy(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant="broken", version=1, document="[from_the_future]"
    )
    world.put("policies", broken, key="broken")
    pid = stack.pid("govern")
    said = world.settings.paths.data / "logs" / "govern.log"

    def complains() -> bool:
        world.say(new_event_id(), tenant="broken")
        return "version 1 of the policy of broken cannot be applied" in said.read_text()

    until(complains)
    world.say("waits", tenant="broken")
    assert world.governed("waits") is None
    assert policy("", "broken")["version"] == 2
    until(lambda: world.governed("waits"))
    assert world.governed("waits")["governed"]["policy_version"] == 2
    assert stack.pid("govern") == pid
    assert world.records("dead-letters") == []


def test_a_key_that_comes_after_the_erasure_is_destroyed(world: Governed) -> None:
    """As from the spool of a gateway that had no Kafka when its person was erased."""
    master = master_of(world.settings)
    assert master is not None
    subject = master.subject("default", "late")
    key = master.new_key("default", subject)
    delete_from_log.decide(world.settings, "default", subject, "test")
    world.put("subject-keys", key, key=key["key_id"])
    until(lambda: deleted(world, key["key_id"]))


def deleted(world: World, key_id: str) -> bool:
    return [event.value for event in world.read("subject-keys") if event.key == key_id][-1:] == [b""]


class Cut(Exception):
    """The command died here."""


class NoStore:
    """A store without a row."""

    def query(self, query: str, parameters: Any = None) -> Any:
        rows = [(0,)] if "count()" in query else []
        return type("Result", (), {"result_rows": rows})()


@pytest.mark.parametrize("at", ["destroy", "delete_up_to"])
def test_an_erasure_that_was_cut_off_goes_on(world: Governed, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    user = f"cut-at-{at}"
    world.say(user, user=user)
    until(lambda: world.governed(user))
    monkeypatch.setattr(delete_from_log, "wait_until_read", lambda *_: None)

    def run() -> erase.Erased:
        return erase.erase(
            world.settings,
            NoStore(),  # type: ignore[arg-type]
            Person("default", user),
            requested_by="t",
            wait_s=1,
            say=lambda _: None,
        )

    with monkeypatch.context() as patch:
        patch.setattr(delete_from_log, at, lambda *_: cut())
        with pytest.raises(Cut):
            run()
    done = run()
    assert done.trajectories == [user]
    assert done.records_unreadable == 2
    until(lambda: not world.governed(user)["messages"])
    assert run().keys_destroyed == 0


def cut() -> None:
    raise Cut
