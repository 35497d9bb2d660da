"""The key ring creates, finds and waits for keys, and never seals events from before an erasure."""

import stat
from pathlib import Path
from typing import Any

import fastavro
import pytest
from sample_records import T0_US, feedback, step, trajectory
from sealing import MASTER, Keys

from stepstream.config import PathsSettings, SealSettings, Settings
from stepstream.config.master_keys import new_master_key
from stepstream.crypto.key_service import WrongMasterKey
from stepstream.crypto.master_key import destroyed, load_master_key
from stepstream.crypto.sealing import is_erased
from stepstream.schemas import schema
from stepstream.topics.catalogue import ERASURES, SUBJECT_KEYS
from stepstream.topics.codec import KeysUnavailable, Malformed
from stepstream.topics.events import new_erasure

WRITER = fastavro.parse_schema(schema("Step"))
LABEL_WRITER = fastavro.parse_schema(schema("LabeledTrajectory"))
LABELS = "labeled-trajectories"
ADA, BOB, EVE = ALL = ("ada lovelace", "bob hoskins", "eve arden")


def opened(keys: Keys, sealed: Any, settings: Settings = MASTER) -> Any:
    return keys.sealer(settings).open("steps", WRITER, dict(sealed))


def shared(**fields: Any) -> Any:
    """A label that names three persons."""
    return trajectory(user=ADA, other_users=[BOB, EVE], started_at_us=T0_US, signature=[1, 2], **fields)


def subject(user: str) -> str:
    master = load_master_key(MASTER)
    assert master is not None
    return master.subject("default", user)


def test_a_shared_record_opens_until_one_key_is_destroyed() -> None:
    for erased_user in ALL:
        keys = Keys()
        writer, reader = keys.sealer(), keys.sealer()
        sealed = writer.seal(LABELS, shared())
        assert len(keys.made) == 3
        assert not any(user in str(sealed) for user in ALL)
        opened = reader.open(LABELS, LABEL_WRITER, dict(sealed))
        assert (opened["user"], opened["other_users"]) == (ADA, [BOB, EVE])
        # A release that knows one key only looks for one of this name: to it, the record is erased.
        assert sealed["seal_key"] not in keys.tables[SUBJECT_KEYS].rows
        keys.destroy(subject(erased_user))
        for each in (reader, keys.sealer()):
            record = each.open(LABELS, LABEL_WRITER, dict(sealed))
            assert is_erased(record)
            assert (record["user"], record["other_users"], record["signature"]) == (None, [], [])
            assert record["flags"] == ["erased"]


def test_the_order_of_persons_does_not_change_the_seal_key() -> None:
    keys = Keys()
    sealer = keys.sealer()
    sealed = sealer.seal(LABELS, shared())
    turned = sealer.seal(LABELS, shared() | {"user": EVE, "other_users": [ADA, BOB, ADA, EVE]})
    assert sealed["seal_key"] == turned["seal_key"]


def test_a_shared_record_waits_for_an_unread_key() -> None:
    keys = Keys()
    sealed = keys.sealer().seal(LABELS, shared())
    table = keys.tables[SUBJECT_KEYS]
    late = table.rows.popitem()
    table.reachable = False
    reader = keys.sealer()
    with pytest.raises(KeysUnavailable):
        reader.open(LABELS, LABEL_WRITER, dict(sealed))
    table.reachable, table.arriving = True, dict([late])
    assert reader.open(LABELS, LABEL_WRITER, dict(sealed))["other_users"] == [BOB, EVE]


@pytest.mark.parametrize("erased_user", ALL)
def test_a_shared_record_is_emptied_if_one_person_is_erased(erased_user: str) -> None:
    keys = Keys()
    keys.erase(subject(erased_user), T0_US)
    record = keys.sealer().seal(LABELS, shared())
    assert is_erased(record)
    assert not any(user in str(record) for user in ALL)
    assert record["signature"] == []
    since = shared() | {"started_at_us": T0_US + 1}
    assert keys.sealer().open(LABELS, LABEL_WRITER, dict(keys.sealer().seal(LABELS, since)))["user"] == ADA


def test_records_under_different_keys_of_one_person_open_everywhere() -> None:
    keys = Keys()
    alone = Keys()
    sealed = [keys.sealer().seal(LABELS, shared()), alone.sealer().seal(LABELS, shared())]
    assert sealed[0]["seal_key"] != sealed[1]["seal_key"]
    for key in alone.made:
        keys.tables[SUBJECT_KEYS].put(key["key_id"], key)
    assert all(keys.sealer().open(LABELS, LABEL_WRITER, dict(each))["user"] == ADA for each in sealed)
    keys.destroy(subject(BOB))
    assert all(is_erased(keys.sealer().open(LABELS, LABEL_WRITER, dict(each))) for each in sealed)


def test_a_person_gets_one_key_that_every_reader_finds() -> None:
    keys = Keys()
    first, second = keys.sealer(), keys.sealer()
    record = step(user="ada lovelace")
    sealed = [first.seal("steps", record), first.seal("steps", record), second.seal("steps", record)]
    assert len(keys.made) == 1
    assert len({each["seal_key"] for each in sealed}) == 1
    assert len({each["sealed"] for each in sealed}) == 3
    assert all(opened(keys, each)["user"] == "ada lovelace" for each in sealed)
    first.seal("steps", step(user="bob hoskins"))
    first.seal("steps", step(user="ada lovelace", tenant="other"))
    assert len({key["subject"] for key in keys.made}) == 3
    assert all("lovelace" not in str(key) and "hoskins" not in str(key) for key in keys.made)


def test_no_topic_is_read_before_a_record_with_a_user() -> None:
    topics: list[str] = []
    keys = Keys()
    sealer = keys.sealer()
    sealer._tables = lambda _, topic: topics.append(topic)
    sealer.close()
    assert topics == []


def test_a_destroyed_key_leaves_an_erased_record() -> None:
    keys = Keys()
    writer, reader = keys.sealer(), keys.sealer()
    sealed = writer.seal("steps", step(user="ada"))
    assert reader.open("steps", WRITER, dict(sealed))["user"] == "ada"
    keys.destroy()
    record = reader.open("steps", WRITER, dict(sealed))
    assert is_erased(record)
    assert (record["user"], record["messages"]) == (None, [])
    # Later events are sealed under a new key.
    later = step(user="ada", at_us=keys.made[0]["occurred_at_us"] + 1)
    assert opened(keys, writer.seal("steps", later))["user"] == "ada"
    assert len(keys.made) == 2


def test_a_missing_key_waits_and_never_counts_as_an_erasure() -> None:
    keys = Keys()
    sealed = keys.sealer().seal("steps", step(user="ada"))
    table = keys.tables[SUBJECT_KEYS]
    late = dict(table.rows)
    table.rows.clear()
    table.arriving = late
    assert opened(keys, sealed)["user"] == "ada"
    table.rows.clear()
    reader = keys.sealer()
    for table.reachable in (False, True):  # a lagging mirror, and a recreated topic that is read to its end
        with pytest.raises(KeysUnavailable):
            reader.open("steps", WRITER, dict(sealed))
    table.arriving = late
    assert reader.open("steps", WRITER, dict(sealed))["user"] == "ada"


def test_a_key_that_is_lost_after_it_was_read_keeps_opening_and_seals_no_more() -> None:
    keys = Keys()
    sealer = keys.sealer()
    sealed = sealer.seal("steps", step(user="ada"))
    keys.lose()
    assert sealer.open("steps", WRITER, dict(sealed))["user"] == "ada"
    assert sealer.seal("steps", step(user="ada"))["seal_key"] != sealed["seal_key"]
    keys.erase(keys.made[0]["subject"], keys.made[0]["occurred_at_us"])
    assert is_erased(sealer.open("steps", WRITER, dict(sealed))), "the erasure covers a key that is gone from the topic"


def test_a_record_without_a_key_destroys_nothing_without_an_erasure() -> None:
    keys = Keys()
    sealed = keys.sealer().seal("steps", step(user="ada"))
    [key] = keys.made
    keys.tables[SUBJECT_KEYS].put(key["key_id"], destroyed(key))
    reader = keys.sealer()
    with pytest.raises(KeysUnavailable, match="without an erasure"):
        reader.open("steps", WRITER, dict(sealed))
    erasure = new_erasure(event_id="e", occurred_at_us=key["occurred_at_us"], tenant="default", subject=key["subject"])
    keys.tables[ERASURES].arriving = {key["subject"]: erasure}
    assert is_erased(reader.open("steps", WRITER, dict(sealed))), "the erasure is read before a decision"


@pytest.mark.parametrize("topic", [SUBJECT_KEYS, ERASURES])
def test_records_wait_while_a_table_cannot_follow(topic: str) -> None:
    keys = Keys()
    reader = keys.sealer()
    sealed = reader.seal("steps", step(user="ada"))
    keys.tables[topic].fault = "offset 7 cannot be read"
    with pytest.raises(KeysUnavailable, match="offset 7 cannot be read"):
        reader.open("steps", WRITER, dict(sealed))
    keys.tables[topic].fault = None
    assert reader.open("steps", WRITER, dict(sealed))["user"] == "ada"


def test_one_destroyed_key_erases_a_shared_record_whose_other_key_is_missing() -> None:
    keys = Keys()
    sealed = keys.sealer().seal(LABELS, shared())
    keys.destroy(subject(BOB))
    del keys.tables[SUBJECT_KEYS].rows[next(k["key_id"] for k in keys.made if k["subject"] == subject(ADA))]
    assert is_erased(keys.sealer().open(LABELS, LABEL_WRITER, dict(sealed)))


def test_an_event_from_before_an_erasure_is_emptied() -> None:
    keys = Keys()
    sealer = keys.sealer()
    sealer.seal("steps", step(user="ada"))
    subject = keys.made[0]["subject"]
    keys.erase(subject, T0_US)
    late = sealer.seal("steps", step(user="ada", at_us=T0_US))
    assert is_erased(opened(keys, late))
    assert "ada" not in str(late)
    assert is_erased(opened(keys, sealer.seal("feedback", feedback(user="ada", comment="x"))))
    assert opened(keys, sealer.seal("steps", step(user="ada", at_us=T0_US + 1)))["user"] == "ada"
    assert opened(keys, sealer.seal("steps", step(user="bob", at_us=T0_US)))["user"] == "bob"


def test_another_master_key_raises_with_the_remedy() -> None:
    keys = Keys()
    sealed = keys.sealer().seal("steps", step(user="ada"))
    for other in ("legacy:another", new_master_key()):
        settings = Settings(seal=SealSettings.model_validate({"master_key": other}))
        with pytest.raises(WrongMasterKey, match="STEPSTREAM_SEAL_MASTER_KEY"):
            opened(keys, sealed, settings)
        with pytest.raises(WrongMasterKey, match="no new record is sealed"):
            keys.sealer(settings).seal("steps", step(user="bob"))


def test_a_damaged_record_is_malformed() -> None:
    keys = Keys()
    sealed = keys.sealer().seal("steps", step(user="ada"))
    with pytest.raises(Malformed):
        opened(keys, {**sealed, "sealed": sealed["sealed"] + b"x"})


def test_the_master_key_is_created_once_and_private(tmp_path: Path) -> None:
    local = Settings(paths=PathsSettings(data=tmp_path))
    assert load_master_key(local, create=False) is None
    first, second = load_master_key(local), load_master_key(local, create=False)
    assert first is not None
    assert second is not None
    assert first.subject("t", "u") == second.subject("t", "u")
    assert first.subject("t", "u") != first.subject("t\x1f", "u")
    file = tmp_path / "secrets" / "master.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_reader_without_the_master_key_raises_and_creates_none(tmp_path: Path) -> None:
    keys = Keys()
    sealed = keys.sealer().seal("steps", step(user="ada"))
    with pytest.raises(KeysUnavailable, match="STEPSTREAM_SEAL_MASTER_KEY"):
        opened(keys, sealed, Settings(paths=PathsSettings(data=tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_without_a_master_key_records_stay_unsealed_if_none_may_be_created(tmp_path: Path) -> None:
    keys = Keys()
    sealer = keys.sealer(Settings(paths=PathsSettings(data=tmp_path)))
    sealer._make_master = False
    record = step(user="ada")
    assert sealer.seal("steps", record) is record
    assert keys.tables[ERASURES].rows == {}


def test_a_key_that_was_not_stored_is_not_used() -> None:
    keys = Keys()
    sealer = keys.sealer()
    keys.keeps = False
    with pytest.raises(KeysUnavailable):
        sealer.seal("steps", step(user="ada"))
    keys.keeps = True
    assert sealer.seal("steps", step(user="ada"))["seal_key"] == keys.made[1]["key_id"]


def test_an_erasure_supersedes_every_earlier_key() -> None:
    """The erasure alone is enough, also for keys that reach the topic after it."""
    keys = Keys()
    sealer = keys.sealer()
    sealed = sealer.seal("steps", step(user="ada"))
    [key] = keys.made
    erasure = new_erasure(event_id="e", occurred_at_us=key["occurred_at_us"], tenant="default", subject=key["subject"])
    keys.tables[ERASURES].put(key["subject"], erasure)
    assert is_erased(sealer.open("steps", WRITER, dict(sealed)))
    assert is_erased(opened(keys, sealed))
    again = sealer.seal("steps", step(user="ada", at_us=key["occurred_at_us"] + 1))
    assert again["seal_key"] != key["key_id"]
    assert opened(keys, again)["user"] == "ada"
