"""Test governance in a running stack: policies as events, waits for a valid policy, late keys, erasures."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import stepstream
from stack_world import World
from stream_records import make_steps
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.crypto.master_key import is_destroyed, load_master_key
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.migrate import migrations
from stepstream.jobs.erasure import delete_from_log, erase
from stepstream.jobs.erasure.findings import Person
from stepstream.jobs.erasure.read_log import Log
from stepstream.jobs.erasure.request import ErasureRequest
from stepstream.topics.consumer import Event
from stepstream.topics.events import new_dead_letter, new_message, new_policy
from stepstream.topics.ids import new_event_id, now_us

MAIL = "ada@example.org"


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("governance")))
    with Stack(settings, ["broker", "registry", "govern"]) as running:
        yield running


class Governed(World):
    """A stack that governs steps with an e-mail address."""

    def send_step(self, name: str, **fields: Any) -> None:
        """Send a trajectory of one step."""
        mail = new_message(role="user", content=MAIL)
        self.send_and_flush("steps", *make_steps(name, 1, messages=[mail], at_us=now_us(), **fields))

    def governed(self, name: str) -> Any:
        """Return the governed step of a trajectory; None: there is none."""
        steps = [record for record in self.records("governed-steps") if record["trajectory_id"] == name]
        return steps[0] if steps else None


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[Governed]:
    with Governed(stack.settings) as opened:
        yield opened


@pytest.fixture
def policy(world: Governed, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that applies a policy by the command line."""

    def apply(document: str, tenant: str, fails: bool = False) -> Any:
        file = tmp_path / "policy.toml"
        file.write_text(document)
        words = ("policy", "apply", str(file), "--tenant", tenant)
        return world.run_command(*words, fails=True) if fails else world.run_json(*words)

    return apply


def test_a_policy_applies_to_later_steps(world: Governed, policy: Callable[..., Any]) -> None:
    world.send_step("before", tenant="acme")
    wait_until(lambda: world.governed("before"))
    assert policy("[redaction.rules]\nemail = false", "acme")["version"] == 1
    wait_until(lambda: governed_under(world, "acme") == 1)
    assert "redaction.rules does not know mail" in policy("[redaction.rules]\nmail = false", "acme", fails=True)
    assert policy("", "acme")["version"] == 2
    assert [row["version"] for row in world.run_json("policy", "list") if row["tenant"] == "acme"] == [2]
    assert world.run_json("policy", "show", "--tenant", "acme")["document"] == ""
    before = world.governed("before")
    assert before["governed"]["policy_version"] == 0
    assert MAIL not in str(before)
    audit = [entry for entry in world.records("governance-audit") if entry["trajectory_id"] == "before"]
    assert [(entry["action"], entry["found"], entry["policy_version"]) for entry in audit] == [
        ("redacted", {"email": 1}, 0)
    ]


def governed_under(world: Governed, tenant: str) -> int:
    """Send a step; return the policy version under which it was governed."""
    name = new_event_id()
    world.send_step(name, tenant=tenant)
    wait_until(lambda: world.governed(name))
    return int(world.governed(name)["governed"]["policy_version"])


def test_events_wait_until_their_policy_can_be_applied(
    stack: Stack, world: Governed, policy: Callable[..., Any]
) -> None:
    broken = new_policy(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant="broken", version=1, document="[from_the_future]"
    )
    world.send_and_flush("policies", broken, key="broken")
    pid = stack.pid("govern")
    log = world.settings.paths.data / "logs" / "govern.log"

    def is_logged() -> bool:
        world.send_step(new_event_id(), tenant="broken")
        return "version 1 of the policy of broken cannot be applied" in log.read_text()

    wait_until(is_logged)
    world.send_step("waits", tenant="broken")
    assert world.governed("waits") is None
    assert policy("", "broken")["version"] == 2
    wait_until(lambda: world.governed("waits"))
    assert world.governed("waits")["governed"]["policy_version"] == 2
    assert stack.pid("govern") == pid
    assert world.records("dead-letters") == []


def test_a_key_that_arrives_after_the_erasure_is_destroyed(world: Governed) -> None:
    """A gateway without Kafka during the erasure sends the key from its spool later."""
    master = load_master_key(world.settings)
    assert master is not None
    subject = master.subject("default", "late")
    key = master.new_key("default", subject)
    delete_from_log.write_decision(world.settings, "default", subject, "test")
    world.send_and_flush("subject-keys", key, key=key["key_id"])
    wait_until(lambda: is_destroyed(newest_key(world, key["key_id"])))


def newest_key(world: World, key_id: str) -> Any:
    return [event.record for event in world.read("subject-keys") if event.key == key_id][-1]


def test_a_record_that_was_accepted_meanwhile_is_redriven_without_effect(world: Governed) -> None:
    world.send_step("again")
    wait_until(lambda: world.governed("again"))
    [raw] = [event for event in world.read("steps") if event.record and event.record["trajectory_id"] == "again"]
    letter = new_dead_letter(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        job="govern@1",
        topic="steps",
        partition=raw.partition,
        offset=raw.offset,
        value_bytes=len(raw.value),
        error="failed",
        reason="KeyError",
    )
    world.send_and_flush("dead-letters", letter, key="again")
    for _ in range(2):
        assert stepstream(world.settings, "dead-letters", "redrive", letter["event_id"], "--again").status == 0
    delete_from_log.wait_until_read(
        world.settings, "govern", delete_from_log.end_offsets(world.settings, ("steps",)), TIMEOUT_S
    )
    assert [r["trajectory_id"] for r in world.records("steps")].count("again") == 3
    assert [r["trajectory_id"] for r in world.records("governed-steps")].count("again") == 1


class Killed(Exception):
    """Simulated death of the command."""


class NoStore:
    """Client of a migrated store without facts, which loses the rows of inserts."""

    def query(self, query: str, *_: Any, **__: Any) -> Any:
        rows: list[Any] = [(0,)] if "count()" in query and "GROUP BY" not in query else []
        if "FROM schema_migrations" in query:
            rows = [(one.name, one.sha256) for one in migrations()]
        return type("Result", (), {"result_rows": rows})()

    def insert(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def command(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def erase_all(world: Governed, *users: str) -> list[erase.ErasureReport]:
    return erase.erase(
        world.settings,
        NoStore(),  # type: ignore[arg-type]
        [Person("default", user) for user in users],
        requested_by="t",
        wait_s=1,
        say=lambda _: None,
    )


def test_many_persons_are_erased_in_one_search_with_a_proof_of_each(
    world: Governed, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = [f"together-{number}" for number in range(3)]
    for user in users:
        world.send_step(user, user=user)
    wait_until(lambda: all(map(world.governed, users)))
    monkeypatch.setattr(delete_from_log, "wait_until_read", lambda *_: None)
    searched: list[str] = []

    def is_emptied(user: str) -> bool:
        return not world.governed(user)["messages"]

    read = Log.read

    def counted(log: Log, topic: str) -> Iterator[Event]:
        searched.append(topic)
        return read(log, topic)

    monkeypatch.setattr(Log, "read", counted)
    reports = erase_all(world, *users, users[0])
    assert [(report.trajectories, report.records_unreadable, report.left) for report in reports] == [
        ([user], 2, {}) for user in users
    ]
    assert set(Counter(searched).values()) == {1}, "one reading of the log for all of them"
    for user, report in zip(users, reports, strict=True):
        wait_until(partial(is_emptied, user))
        [proof] = proofs_of(world, report)
        assert (proof["keys_destroyed"], proof["requested_by"], len(proof["decisions"])) == (1, "t", 1)
        assert {one["topic"]: one["records"] for one in proof["made_unreadable"]} == {"steps": 1, "governed-steps": 1}
        assert {one["place"] for one in proof["remaining"]} == {"compaction", "snapshots"}


def proofs_of(world: Governed, report: erase.ErasureReport) -> list[Any]:
    proofs = [event.record for event in world.read("erasure-proofs")]
    return [proof for proof in proofs if proof["request_id"] == report.request_id]


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (delete_from_log, "destroy_keys"),
        (delete_from_log, "delete_up_to"),
        (erase, "send_proof"),
        (ErasureRequest, "end"),
    ],
)
def test_an_interrupted_erasure_resumes_and_has_one_proof(
    world: Governed, monkeypatch: pytest.MonkeyPatch, module: Any, function: str
) -> None:
    user = f"killed-at-{function}"
    world.send_step(user, user=user)
    wait_until(lambda: world.governed(user))
    monkeypatch.setattr(delete_from_log, "wait_until_read", lambda *_: None)

    def run() -> erase.ErasureReport:
        [report] = erase_all(world, user)
        return report

    with monkeypatch.context() as patch:
        patch.setattr(module, function, lambda *_: die())
        with pytest.raises(Killed):
            run()
    done = run()
    assert done.trajectories == [user]
    assert (done.records_unreadable, done.keys_destroyed) == (2, 1)
    proofs = proofs_of(world, done)
    assert len({proof["event_id"] for proof in proofs}) == 1
    assert (sum(one["records"] for one in proofs[-1]["made_unreadable"]), len(proofs[-1]["decisions"])) == (2, 2)
    subjects = [event.record["subject"] for event in world.read("erasure-proofs")]
    assert subjects.count(done.subject) == len(proofs), "no other request"
    wait_until(lambda: not world.governed(user)["messages"])
    assert run().keys_destroyed == 0


def die() -> None:
    raise Killed
