"""Answers of people that are signed: which count where keys are trusted, and what a forger can do."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fake_controller import BY_PEOPLE, World, of_weights, tick
from pydantic import ValidationError
from stack_fixtures import with_settings

from stepstream.config import ControlSettings, Settings, SettingsError
from stepstream.crypto.signatures import create_key, public_key
from stepstream.services.control.decisions import fold
from stepstream.services.control.signatures import TrustedKeys, signed, signing_key
from stepstream.topics.catalogue import APPROVALS
from stepstream.topics.events import Approval, Decision, new_approval, new_decision

CONSOLE, ANNA, STRANGER = (Ed25519PrivateKey.generate() for _ in range(3))
TRUSTED = [public_key(CONSOLE), f"anna:operator:{public_key(ANNA)}"]
UNSIGNED = "it is not signed: set control.signing_key"


def answer(author: str = "anna", verdict: str = "approved", **fields: Any) -> Approval:
    values = {"event_id": f"{author} {verdict}", "occurred_at_us": 1, "decision_id": "d", "role": "operator", **fields}
    return new_approval(verdict=verdict, author=author, **values)


def fault(one: Approval) -> str:
    return TrustedKeys(TRUSTED).fault(one)


def test_an_answer_counts_that_a_trusted_key_signed() -> None:
    assert fault(signed(answer(), ANNA)) == ""
    assert fault(signed(answer("bert", role="admin"), CONSOLE)) == "", "the console signs for everyone"
    assert fault(signed(answer(role="viewer"), ANNA)) == "", "a role includes those below it"
    later = {**signed(answer(), ANNA), "refused": "it is done already"}
    assert fault(later) == "", "the controller writes the reason of a refusal beside the signature"  # type: ignore[arg-type]


def test_an_answer_without_signature_or_by_another_key_does_not_count() -> None:
    assert fault(answer()) == UNSIGNED
    assert "is not in control.trusted_keys" in fault(signed(answer(), STRANGER))
    forged = signed(answer(), STRANGER)
    assert forged["signature"] is not None
    own = signed(answer(), ANNA)["signature"]
    assert own is not None
    forged["signature"]["key_id"] = own["key_id"]
    assert fault(forged) == f"its signature by key {own['key_id']} is wrong"
    forged["signature"]["signature"] = "no base64"
    assert fault(forged) == f"its signature by key {own['key_id']} is wrong"


@pytest.mark.parametrize(
    "changed",
    [
        {"author": "bert"},
        {"role": "viewer"},
        {"verdict": "rejected"},
        {"decision_id": "another decision"},
        {"tenant": "acme"},
        {"event_id": "again"},
        {"occurred_at_us": 2},
        {"comment": "looks sound"},
    ],
)
@pytest.mark.parametrize("key", [CONSOLE, ANNA])
def test_an_altered_or_replayed_answer_does_not_count(changed: dict[str, Any], key: Ed25519PrivateKey) -> None:
    altered: Any = {**signed(answer(), key), **changed}
    assert "is wrong" in fault(altered)


def test_a_persons_key_signs_for_nobody_else_and_for_no_higher_role() -> None:
    for one in (answer("bert"), answer(role="admin"), answer(role="")):
        assert "signs for anna as operator only" in fault(signed(one, ANNA))


def test_without_trusted_keys_every_answer_counts_as_before() -> None:
    for one in (answer(), signed(answer(), STRANGER)):
        assert TrustedKeys().fault(one) == ""


def test_keys_are_settings(tmp_path: Path) -> None:
    public = create_key(tmp_path / "key.pem")
    control = ControlSettings(signing_key=str(tmp_path / "key.pem"), trusted_keys=[f"a:b:admin:{public}"])
    assert TrustedKeys(control.trusted_keys).fault(signed(answer("a:b"), signing_key(control))) == ""
    assert signing_key(ControlSettings()) is None
    with pytest.raises(SettingsError, match=r"control\.signing_key: .*missing\.pem has no private key"):
        signing_key(ControlSettings(signing_key=str(tmp_path / "missing.pem")))
    with pytest.raises(SettingsError, match="is listed twice"):
        TrustedKeys([public, f"anna:admin:{public}"])


@pytest.mark.parametrize("entry", ["nonsense", "anna:{}", "anna:boss:{}", ":admin:{}", "anna:admin:x{}", ""])
def test_a_malformed_trusted_key_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match="is neither KEY nor PERSON:ROLE:KEY"):
        ControlSettings(trusted_keys=[entry.format(public_key(ANNA))])


def decision() -> Decision:
    fields: Any = {"approvals": 1, "roles": ["operator"], "watched_until_us": 10}
    return new_decision(
        event_id="d", occurred_at_us=0, agent="a", model="m", action="canary", lever="weights", **fields
    )


def test_cli_and_console_show_and_refuse_answers_by_their_signatures() -> None:
    keys = TrustedKeys(TRUSTED)
    log = fold([decision()], [answer("mallory")], [], keys)
    [row] = log.listed(2)
    assert (row["state"], row["approved_by"]) == ("awaiting", [])
    assert log.details(decision(), 2)["answers"][0]["refused"] == UNSIGNED
    person: Any = {"tenant": "", "author": "anna", "role": "operator", "comment": "", "event_id": "1", "now_us": 2}
    assert log.answered("d", "approved", **person)["refused"] == UNSIGNED
    given = log.answered("d", "approved", **person, key=ANNA)
    assert (given["refused"], fault(given)) == ("", "")
    assert fold([decision()], [answer("mallory"), given], [], keys).listed(2)[0]["approved_by"] == ["anna"]


def test_a_forged_copy_hides_no_signed_answer() -> None:
    genuine = signed(answer(verdict="rejected"), ANNA)
    forged = {**genuine, "verdict": "approved"}
    log = fold([decision()], [genuine, forged], [], TrustedKeys(TRUSTED))  # type: ignore[list-item]
    assert log.listed(2)[0]["state"] == "rejected"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world whose controller trusts keys, and where a decision waits for two people."""
    tick(monkeypatch)
    world = World(BY_PEOPLE.replace("approvals = 1", "approvals = 2"), of_weights)
    world.settings = with_settings(Settings(), control={"trusted_keys": TRUSTED})
    controller = world.controller()
    while not world.decisions().pulls:
        controller.run_once()
    return world


def write(world: World, author: str, key: Ed25519PrivateKey | None, **fields: Any) -> Approval:
    """Write an answer to the decision that waits, as a client that checks nothing."""
    [waiting] = world.decisions().in_order()
    at_us, number = waiting["occurred_at_us"], len(world.of(APPROVALS))
    values = {"event_id": f"answer {number}", "occurred_at_us": at_us + number, "decision_id": waiting["event_id"]}
    record = signed(answer(author, **{**values, **fields}), key)
    world.records.append((APPROVALS, record))
    return record


def refusals(world: World) -> list[tuple[str, str]]:
    return [(one["author"], one["refused"]) for one in world.of(APPROVALS) if one["refused"]]


def test_the_controller_refuses_forged_answers_in_the_log_once(world: World) -> None:
    write(world, "anna", None)
    write(world, "bert", STRANGER)
    write(world, "carl", ANNA)
    for _ in range(2):
        world.controller().run_once()
    assert world.serving().versions.served.canary is None
    reasons = (UNSIGNED, "is not in control.trusted_keys", "signs for anna as operator only")
    assert [author for author, _ in refusals(world)] == ["anna", "bert", "carl"], "each once"
    assert all(reason in found for reason, (_, found) in zip(reasons, refusals(world), strict=True)), refusals(world)


def test_forged_answers_neither_do_a_decision_nor_displace_signed_ones(world: World) -> None:
    write(world, "mallory", None)
    genuine = write(world, "anna", ANNA)
    world.records.append((APPROVALS, {**genuine, "verdict": "rejected"}))
    world.controller().run_once()
    assert world.serving().versions.served.canary is None
    write(world, "bert", CONSOLE)
    for _ in range(2):
        world.controller().run_once()
    assert world.serving().versions.served.canary == 2
    assert refusals(world) == [("mallory", UNSIGNED)]


def test_decisions_of_before_keep_their_unsigned_approvals(world: World) -> None:
    """Keys that are set later change nothing about what was done."""
    trusting, world.settings = world.settings, Settings()
    write(world, "anna", None)
    write(world, "bert", None)
    world.controller().run_once()
    assert world.serving().versions.served.canary == 2
    world.settings = trusting
    world.controller().run_once()
    assert refusals(world) == []
