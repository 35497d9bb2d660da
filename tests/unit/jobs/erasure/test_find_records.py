"""The search finds records that name the person, and records without a name in the person's own trajectories."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from stream_records import T0_US, make_feedback, make_steps

from stepstream.jobs.erasure.find_records import Search, SearchIndex, add_by_trajectory, add_event
from stepstream.jobs.erasure.findings import Findings, OffsetRange, Person
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event
from stepstream.topics.events import new_content_claim, new_trace_export

ADA = Person("default", "ada")
NO_CODEC = cast(Codec, None)


def event(topic: str, record: Any, offset: int = 0) -> Event:
    return Event(topic, 0, offset, "", record)


def search(*events: Event, keys: frozenset[str] = frozenset()) -> Findings:
    """Run both passes over a log; `keys` are Ada's keys, and `bobs` is another person's."""
    found = Findings(set(keys))
    for each in events:
        add_event(found, ADA, each, NO_CODEC)
    for each in events:
        if each.topic != "open-traces":
            add_by_trajectory(found, ADA, each, {"bobs"})
    return found


def test_a_record_without_a_name_is_found_by_its_trajectory_in_any_order() -> None:
    unnamed = make_feedback("t", comment="she churned")
    [named, unnamed_step] = make_steps("t", 2)
    found = search(
        event("feedback", unnamed, 3),
        event("governed-feedback", unnamed),
        event("feedback", make_feedback("else", comment="of somebody else's work"), 9),
        event("steps", named | {"user": "ada"}, 1),
        event("steps", unnamed_step, 2),
        event("governed-steps", unnamed_step),
    )
    assert found.own_trajectories == {"t"}
    assert found.unsealed == {("feedback", 0): OffsetRange(3, 3, 1), ("steps", 0): OffsetRange(1, 2, 2)}
    assert found.remaining == {"governed-feedback": 1, "governed-steps": 1}


def test_records_without_content_or_of_another_person_are_not_found() -> None:
    [step, other] = make_steps("t", 2)
    found = search(
        event("governed-steps", step | {"user": "ada", "seal_key": None}),
        event("feedback", make_feedback("t")),
        event("steps", other | {"user": "bob"}),
    )
    assert found.unsealed == {}
    assert found.remaining == {"governed-steps": 1}, "the person's record, older than sealing"


def test_a_trajectory_with_only_feedback_from_the_person_is_not_an_own_one() -> None:
    [step] = make_steps("t", 1)
    found = search(event("feedback", make_feedback("t", user="ada")), event("steps", step, 4))
    assert (found.trajectories, found.own_trajectories) == ({"t"}, set())
    assert found.unsealed == {("feedback", 0): OffsetRange(0, 0, 1)}


def test_a_trajectory_of_another_tenant_with_the_same_id_is_not_found() -> None:
    [named, unnamed_step] = make_steps("t", 2)
    found = search(event("steps", named | {"user": "ada"}, 1), event("steps", unnamed_step | {"tenant": "other"}, 2))
    assert found.unsealed == {("steps", 0): OffsetRange(1, 1, 1)}


def test_labels_of_a_shared_trajectory_are_found_under_any_key() -> None:
    """Those of an earlier release are under the key of one person alone."""
    [step] = make_steps("t", 1)
    label = {"trajectory_id": "t", "tenant": "default", "user": None, "steps": [step]}
    found = search(
        event("governed-steps", step | {"seal_key": "hers"}),
        *(
            event("labeled-trajectories", label | {"seal_key": key}, n)
            for n, key in enumerate(["bobs", "gone", "hers"])
        ),
        event("labeled-trajectories", label | {"seal_key": "bobs", "trajectory_id": "u"}, 3),
        event("labeled-trajectories", label | {"seal_key": "bobs", "tenant": "other"}, 4),
        keys=frozenset({"hers"}),
    )
    assert found.labels == {(0, 0), (0, 1), (0, 2)}
    assert found.remaining == {"labeled-trajectories": 1}, "the label that stays readable"


def test_labels_that_are_sealed_under_the_persons_key_too_become_unreadable() -> None:
    adas, bobs = make_steps("t", 2)
    label = {"trajectory_id": "t", "tenant": "default", "user": None, "steps": [adas, bobs]}
    found = search(
        event("governed-steps", adas | {"user": None, "seal_key": "hers"}),
        event("governed-steps", bobs | {"user": None, "seal_key": "bobs"}),
        event("labeled-trajectories", label | {"seal_key": "bobs+hers"}, 4),
        # From before she came in, and from before labels were sealed.
        event("labeled-trajectories", label | {"seal_key": "bobs", "steps": [bobs]}, 5),
        event("labeled-trajectories", label | {"user": "bob", "seal_key": None}, 6),
        keys=frozenset({"hers"}),
    )
    assert found.sealed == 2
    assert found.labels == {(0, 4), (0, 6)}
    assert found.remaining == {"labeled-trajectories": 1}


def test_open_traces_that_name_the_person_are_found() -> None:
    records = [
        new_trace_export(
            event_id="e",
            occurred_at_us=T0_US,
            producer="gateway/1",
            trace_id="0" * 32,
            tenant=tenant,
            consent="train",
            signal="traces",
            payload=payload,
        )
        for tenant, payload in (("default", b"user.id: ada"), ("default", b"user.id: bob"), ("other", b"user.id: ada"))
    ]
    found = search(*(event("open-traces", record, offset) for offset, record in enumerate(records)))
    assert found.unsealed == {("open-traces", 0): OffsetRange(0, 0, 1)}
    assert found.open_traces == {("open-traces", 0): [0]}


def test_findings_survive_an_interrupted_attempt() -> None:
    found = Findings({"k"}, {"t", "u"}, {"t"}, {(0, 4)})
    again = Findings()
    again.merge(Findings.unpack(found.pack()))
    assert (again.key_ids, again.trajectories, again.own_trajectories, again.labels) == (
        {"k"},
        {"t", "u"},
        {"t"},
        {(0, 4)},
    )


@given(st.lists(st.tuples(*[st.sampled_from([None, "ann", "bob"])] * 2, st.sampled_from([None, "k1", "k2", "k1+k2"]))))
def test_one_search_for_many_persons_finds_what_one_for_each_does(records: list[tuple[Any, Any, Any]]) -> None:
    events = []
    for offset, (tenant, user, key) in enumerate(records):
        record = make_steps(f"t{offset}", 1, user=user)[0] | {"seal_key": key, "tenant": tenant or "default"}
        events.append(event("governed-steps" if key else "steps", record, offset))

    def new_searches() -> list[Search]:
        keys = {"ann": {"k1"}, "bob": {"k2"}}
        return [Search(Person("default", user), Findings(set(keys[user])), set()) for user in keys]

    together, alone = new_searches(), new_searches()
    index = SearchIndex(together)
    for each in events:
        for one in index.concerned(each):
            add_event(one.found, one.person, each, NO_CODEC)
        for one in alone:
            add_event(one.found, one.person, each, NO_CODEC)
    assert [one.found for one in together] == [one.found for one in alone]


def test_records_are_counted_as_made_unreadable_by_the_request_that_destroys_their_key() -> None:
    found = Findings({"old", "new"}, requested_key_ids={"new"})
    [step] = make_steps("t", 1, user=None)
    for offset, key in enumerate(["old", "new", "new", "bobs+new"], 4):
        add_event(found, ADA, event("governed-steps", step | {"seal_key": key}, offset), NO_CODEC)
    assert found.sealed == 4
    assert found.unreadable == {("governed-steps", 0): OffsetRange(5, 7, 3)}


def test_the_objects_of_large_records_are_found_sealed_and_in_the_clear() -> None:
    def large(number: int, **fields: Any) -> Any:
        claim = new_content_claim(path=f"t/2026-01-01/{number}", sha256="", size_bytes=1)
        return make_steps("t", 1)[0] | {"claim": claim} | fields

    found = search(
        event("steps", large(1, seal_key="adas", sealed=None)),
        event("governed-steps", large(2, seal_key="adas+bobs")),
        event("steps", large(3, user="ada")),
        event("steps", large(4)),
        event("steps", large(5, user="bob")),
        event("governed-steps", large(6, seal_key="bobs")),
        keys=frozenset({"adas"}),
    )
    assert found.objects == {f"t/2026-01-01/{number}" for number in (1, 2, 3, 4)}
    assert Findings.unpack(found.pack()).objects == found.objects
