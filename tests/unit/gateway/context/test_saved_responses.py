"""Saved conversations outlive the gateway, encrypted and bounded, and disappear with the erasure of a person."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import orjson
import pytest

from stepstream.services.gateway.context.encrypted_store import FILE, EncryptedStore
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.protocols.base import History

DAY_S = 86_400.0


def open_store(folder: Path | None, limit_bytes: int = 1 << 20, **more: object) -> EncryptedStore:
    return EncryptedStore(folder, limit_bytes, DAY_S, **more)  # type: ignore[arg-type]


def test_another_gateway_of_the_folder_reads_the_values_of_a_killed_one(tmp_path: Path) -> None:
    first = open_store(tmp_path / "spool")  # never closed
    first.put("resp_1", b"first answer")
    first.put("resp_1", b"second answer")
    second = open_store(tmp_path / "spool")
    assert second.get("resp_1") == b"second answer"
    assert second.get("resp_2") is None
    second.put("resp_2", b"on")
    assert first.get("resp_2") == b"on"
    second.delete("resp_2")
    assert first.get("resp_2") is None
    first.close()
    second.close()


def test_the_file_contains_neither_names_nor_values_in_plain(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("resp_secret", b"first answer")
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert len(content) > 0
    assert b"first answer" not in content
    assert b"resp_secret" not in content
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    store.close()


def test_the_oldest_values_are_deleted_first_and_all_expire(tmp_path: Path) -> None:
    now = [1_000_000.0]
    store = open_store(tmp_path, 10_000, now_s=lambda: now[0])
    for number in range(50):
        store.put(f"r{number}", b"x" * 500)
        now[0] += 1
    remaining = [number for number in range(50) if store.get(f"r{number}") is not None]
    assert remaining == list(range(50 - len(remaining), 50))
    assert 8_000 < len(remaining) * 628 <= 10_000
    now[0] += DAY_S
    assert store.get("r49") is None
    store.close()


def test_a_damaged_file_is_replaced_and_without_a_usable_folder_memory_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 100)
    store = open_store(tmp_path)
    store.put("r", b"on")
    assert store.get("r") == b"on"
    store.close()
    assert "is damaged" in caplog.text
    (tmp_path / "file").touch()
    store = open_store(tmp_path / "file")
    store.put("r", b"on")
    assert store.get("r") == b"on"
    store.close()
    assert "not stored on disk" in caplog.text


@pytest.fixture
def memory_store() -> Iterator[Callable[[int], EncryptedStore]]:
    """Opens a store in memory with a limit in bytes, and closes it after the test."""
    with ExitStack() as stack:
        yield lambda limit_bytes: stack.enter_context(closing(EncryptedStore(None, limit_bytes, 60.0)))


def conversation(messages: int, trajectory_id: str = "t") -> History:
    return History([{"role": "user", "content": f"{number} {'x' * 100}"} for number in range(messages)], trajectory_id)


def stored_bytes(folder: Path) -> int:
    with closing(sqlite3.connect(folder / FILE)) as file:
        return int(file.execute("SELECT total(size) FROM pieces").fetchone()[0])


@pytest.mark.parametrize("by_id", [True, False])
def test_each_message_of_a_conversation_is_stored_once(tmp_path: Path, by_id: bool) -> None:
    """Agents continue by id, or send the whole conversation with each call."""
    with closing(open_store(tmp_path)) as store:
        responses = SavedResponses(store)
        sizes = []
        for turn in range(1, 101):
            if by_id and turn > 1:
                assert responses.get("acme", f"r{turn - 1}") == conversation(turn - 1)
            responses.save("acme", f"r{turn}", conversation(turn), None, 0)
            if turn in (50, 100):
                sizes.append(stored_bytes(tmp_path))
        assert sizes[1] == pytest.approx(2 * sizes[0], rel=0.05)
        assert sizes[1] < 100 * 1_000
        assert [responses.get("acme", f"r{turn}") for turn in (1, 50, 100)] == [conversation(n) for n in (1, 50, 100)]
        edited = History([*conversation(40).messages, {"role": "user", "content": "other"}], "t")
        responses.save("acme", "branch", edited, None, 0)
        assert responses.get("acme", "branch") == edited
        assert responses.get("acme", "r100") == conversation(100)


def test_another_process_continues_a_conversation_without_storing_it_again(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as first, closing(open_store(tmp_path)) as second:
        SavedResponses(first).save("acme", "r1", conversation(50), None, 0)
        before = stored_bytes(tmp_path)
        responses = SavedResponses(second)
        assert responses.get("acme", "r1") == conversation(50)
        responses.save("acme", "r2", conversation(51), None, 0)
        assert stored_bytes(tmp_path) - before < 1_500
        assert responses.get("acme", "r2") == conversation(51)


def test_a_conversation_in_use_stays_while_others_are_deleted(tmp_path: Path) -> None:
    now = [1_000_000.0]
    with closing(open_store(tmp_path, 50_000, now_s=lambda: now[0])) as store:
        responses = SavedResponses(store, monotonic=lambda: now[0])
        for turn in range(1, 41):
            if turn > 1:
                assert responses.get("acme", f"r{turn - 1}") is not None
            responses.save("acme", f"r{turn}", conversation(turn), None, 0)
            responses.save("acme", f"other{turn}", conversation(8, f"other{turn}"), None, 0)
            now[0] += 61
        assert responses.get("acme", "r40") == conversation(40)
        assert responses.get("acme", "other1") is None


def test_a_conversation_with_a_deleted_part_is_stored_anew(tmp_path: Path) -> None:
    now = [1_000_000.0]
    with closing(open_store(tmp_path, now_s=lambda: now[0])) as store:
        responses = SavedResponses(store, monotonic=lambda: now[0])
        responses.save("acme", "r1", conversation(3), None, 0)
        now[0] += DAY_S
        responses.save("acme", "r2", conversation(4), None, 0)  # the first three have expired
        assert responses.get("acme", "r2") == conversation(4)
        assert responses.get("acme", "r1") is None


def test_conversations_of_earlier_releases_are_read(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        old = {"messages": conversation(2).messages, "trajectory_id": "t", "user": None, "at_us": 0}
        store.put("acme\0r1", orjson.dumps(old))
        assert SavedResponses(store).get("acme", "r1") == conversation(2)


def test_conversations_are_saved_up_to_a_number_of_bytes(memory_store: Callable[[int], EncryptedStore]) -> None:
    responses = SavedResponses(memory_store(2_000))
    for turn in range(5):
        responses.save("acme", f"r{turn}", conversation(1, f"t{turn}"), None, 0)
    assert responses.get("acme", "r0") is None
    assert responses.get("acme", "r4") == conversation(1, "t4")
    assert responses.get("other", "r4") is None
    responses.save("acme", "huge", History([{"role": "user", "content": "x" * 2_000}]), None, 0)
    assert responses.get("acme", "huge") is None


def test_a_conversation_of_an_erased_person_is_not_returned(memory_store: Callable[[int], EncryptedStore]) -> None:
    erased = {("acme", "ada"): 5}
    responses = SavedResponses(
        memory_store(10_000), lambda tenant, user, at_us: at_us <= erased.get((tenant, user), -1)
    )
    for name, user, at_us in (("before", "ada", 5), ("after", "ada", 6), ("other", "bob", 5), ("nobody", None, 5)):
        responses.save("acme", name, History(), user, at_us)
    assert responses.get("acme", "before") is None
    responses.save_items("acme", [{"id": "i1"}], "ada", 5)
    responses.save_items("acme", [{"id": "i2"}], "ada", 6)
    assert (responses.item("acme", "i1"), responses.item("acme", "i2")) == (None, {"id": "i2"})
    assert responses.item("other", "i2") is None
    erased.clear()
    assert responses.get("acme", "before") is None
    assert all(responses.get("acme", name) is not None for name in ("after", "other", "nobody"))


def test_a_conversation_is_deleted_with_the_erasure_of_any_participant(
    memory_store: Callable[[int], EncryptedStore],
) -> None:
    erased: set[str] = set()
    responses = SavedResponses(memory_store(10_000), lambda tenant, user, at_us: user in erased and at_us <= 5)
    for name, before, user, at_us in (("one", "", "ada", 5), ("two", "one", "bob", 6), ("three", "two", None, 7)):
        history = responses.get("acme", before) if before else History()
        assert history is not None
        responses.save("acme", name, history, user, at_us)
    assert responses.get("acme", "three") == History(participants={"ada": 5, "bob": 6})
    erased.add("bob")
    assert responses.get("acme", "three") is not None, "bob joined after his erasure"
    erased.add("ada")
    assert [responses.get("acme", name) for name in ("one", "two", "three")] == [None] * 3
