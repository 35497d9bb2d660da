"""Test the commands about decisions and control policies on a real log."""

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import stepstream
from stack_fixtures import with_settings
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.topics.catalogue import CHECKPOINTS, CONSOLE_USERS, DECISIONS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_checkpoint, new_console_user, new_decision
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

HOUR_US = 3_600_000_000


class Fleet:
    """An agent and a model of a tenant of its own, whose decisions the test writes."""

    def __init__(self, settings: Settings, producer: EventProducer) -> None:
        self.settings, self._producer = settings, producer
        self.tenant = f"t{uuid.uuid4().hex}"
        self.model = f"m{uuid.uuid4().hex}"

    def decide(self, **fields: Any) -> str:
        """Write a decision that two people must approve within an hour; return its id."""
        values: dict[str, Any] = {
            "action": "canary",
            "lever": "weights",
            "target": "2",
            "reason": "it is published and untried",
            "approvals": 2,
            "roles": ["operator"],
            "watched_until_us": now_us() + HOUR_US,
            **fields,
        }
        decision = new_decision(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            tenant=self.tenant,
            agent="shop",
            model=self.model,
            **values,
        )
        self.write(DECISIONS, f"{self.tenant}", decision)
        return decision["event_id"]

    def write(self, topic: str, key: str, record: Any) -> None:
        self._producer.send(topic, key, record)
        self._producer.flush(TIMEOUT_S)

    def run(self, *words: str, code: int = 0, person: str = "") -> Any:
        """Run a command as a person; return its JSON, or its error."""
        with pytest.MonkeyPatch.context() as patch:
            if person:
                patch.setenv("LOGNAME", person)
            result = stepstream(self.settings, *words, "--json")
        assert result.status == code, result.stderr
        return result.stderr if code else json.loads(result.stdout)


@pytest.fixture(scope="module")
def fleet(registry_settings: Settings) -> Iterator[Fleet]:
    settings = with_settings(registry_settings, console={"login": True})
    with closing(Codec(settings)) as codec:
        fleet = Fleet(settings, EventProducer(settings.kafka, codec, "test", linger_ms=0))
        for name, role in (("anna", "operator"), ("bert", "admin"), ("vito", "viewer")):
            user = new_console_user(
                event_id=new_event_id(), occurred_at_us=now_us(), name=name, role=role, password_digest=""
            )
            fleet.write(CONSOLE_USERS, name, user)
        yield fleet


def test_two_people_approve_and_every_other_answer_is_refused_in_the_log(fleet: Fleet) -> None:
    old, new = fleet.decide(), fleet.decide()
    assert "replaced it" in fleet.run("decisions", "approve", old, code=1, person="anna")
    assert "there is no decision x" in fleet.run("decisions", "approve", "x", code=1, person="anna")
    assert "yours is viewer" in fleet.run("decisions", "reject", new, code=1, person="vito")
    assert "yours is unknown" in fleet.run("decisions", "approve", new, code=1, person="stranger")
    answer = fleet.run("decisions", "approve", new, "--comment", "looks sound", person="anna")
    assert (answer["author"], answer["role"], answer["refused"]) == ("anna", "operator", "")
    assert "another person" in fleet.run("decisions", "approve", new, code=1, person="anna")
    [waits] = fleet.run("decisions", "list", "--tenant", fleet.tenant, "--state", "awaiting")
    assert (waits["id"], waits["approved_by"]) == (new, ["anna"])
    fleet.run("decisions", "approve", new, person="bert")
    assert "anna, bert approved it already" in fleet.run("decisions", "reject", new, code=1, person="bert")
    shown = fleet.run("decisions", "show", new)
    assert (shown["state"], shown["approved_by"]) == ("approved", ["anna", "bert"])
    assert [(one["author"], bool(one["refused"])) for one in shown["answers"]] == [
        ("vito", True),
        ("stranger", True),
        ("anna", False),
        ("anna", True),
        ("bert", False),
        ("bert", True),
    ]
    late = fleet.decide(watched_until_us=now_us() - 1)
    assert "could be answered until" in fleet.run("decisions", "approve", late, code=1, person="anna")
    text = stepstream(fleet.settings, "decisions", "show", new).stdout
    assert "2 of operator must approve" in text
    assert "anna (operator) approved it: looks sound" in text


def test_answers_that_no_trusted_key_signed_do_not_count(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision, unsigned = fleet.decide(approvals=1), fleet.settings
    fleet.run("decisions", "approve", decision, person="anna")
    public = json.loads(stepstream(unsigned, "models", "keygen", str(tmp_path / "bert.pem"), "--json").stdout)
    trusted = {"trusted_keys": [f"bert:admin:{public['public_key']}"]}
    monkeypatch.setattr(fleet, "settings", with_settings(unsigned, control=trusted))
    shown = fleet.run("decisions", "show", decision)
    assert (shown["state"], "it is not signed" in shown["answers"][0]["refused"]) == ("awaiting", True)
    assert "set control.signing_key" in fleet.run("decisions", "approve", decision, code=1, person="bert")
    key = {"signing_key": str(tmp_path / "bert.pem")}
    monkeypatch.setattr(fleet, "settings", with_settings(unsigned, control=trusted | key))
    assert "signs for bert as admin only" in fleet.run("decisions", "approve", decision, code=1, person="anna")
    answer = fleet.run("decisions", "approve", decision, person="bert")
    assert fleet.run("decisions", "show", decision)["approved_by"] == ["bert"]
    text = stepstream(fleet.settings, "decisions", "show", decision).stdout
    assert f"bert (admin) approved it, signed by key {answer['signature']['key_id']}" in text
    (tmp_path / "bert.pem").unlink()
    assert "control.signing_key: " in fleet.run("decisions", "reject", decision, code=2, person="bert")


def test_one_person_rejects(fleet: Fleet) -> None:
    decision = fleet.decide()
    fleet.run("decisions", "approve", decision, person="anna")
    answer = fleet.run("decisions", "reject", decision, "--comment", "not today", person="bert")
    assert (answer["verdict"], answer["author"], answer["refused"]) == ("rejected", "bert", "")
    assert fleet.run("decisions", "show", decision)["state"] == "rejected"
    assert "bert rejected it already" in fleet.run("decisions", "approve", decision, code=1, person="bert")


def test_a_promotion_is_undone_once(fleet: Fleet) -> None:
    for version in (1, 2):
        checkpoint = new_checkpoint(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            model=fleet.model,
            version=version,
            parent_version=version - 1 or None,
            uri="file:///nowhere",
            weights_sha256="",
            code_version="test",
        )
        fleet.write(CHECKPOINTS, f"{fleet.model}@{version}", checkpoint)
        fleet.run("models", "promote", f"{fleet.model}@{version}")
    done = fleet.decide(action="promote", approvals=0)
    assert "stable 1" in fleet.run("decisions", "undo", done, "--reason", "customers complain")["undone"]
    shown = fleet.run("decisions", "show", done)
    assert (shown["state"], "customers complain" in shown["acts"][0]["reason"]) == ("undone", True)
    assert "is not stable any more" in fleet.run("decisions", "undo", done, code=1)
    hold = fleet.decide(action="hold", lever=None)
    assert "not undone here" in fleet.run("decisions", "undo", hold, code=1)


def test_a_policy_is_applied_frozen_and_removed(fleet: Fleet, tmp_path: Path) -> None:
    tenant, file = fleet.tenant, tmp_path / "policy.toml"
    text = f"tenant = '{tenant}'\n\n[levers.weights]\napprovals = 2\n"
    file.write_text(text + "costs = 1\n")
    assert "line 5: levers.weights.costs" in fleet.run("policy", "control", "apply", str(file), code=1)
    file.write_text(text)
    assert fleet.run("policy", "control", "apply", str(file), "--name", "shop")["version"] == 1
    assert fleet.run("decisions", "freeze", "--tenant", tenant) == [
        {"tenant": tenant, "policy": "shop", "version": 2, "state": "frozen"}
    ]
    assert fleet.run("decisions", "freeze", "--tenant", tenant) == []
    assert fleet.run("policy", "control", "apply", str(file), "--name", "shop")["frozen"]
    assert "unfreeze" in fleet.run("policy", "control", "remove", "shop", "--tenant", tenant, code=1)
    fleet.run("decisions", "unfreeze", "--tenant", tenant)
    shown = fleet.run("policy", "control", "show", "shop", "--tenant", tenant)
    assert (shown["policy"]["version"], shown["policy"]["frozen"]) == (4, False)
    assert any("2 of operator, admin must approve" in one for one in shown["sentences"])
    fleet.run("policy", "control", "remove", "shop", "--tenant", tenant)
    assert all(one["tenant"] != tenant for one in fleet.run("policy", "control", "list"))
    assert "has no control policy shop" in fleet.run("policy", "control", "show", "shop", "--tenant", tenant, code=1)
