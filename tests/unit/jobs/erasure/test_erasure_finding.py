"""What of a person is found on the log: what names them, and what names nobody in a trajectory that is theirs."""

from typing import Any, cast

from stream_records import T0_US, make_feedback, make_steps

from stepstream.jobs.erasure.find_records import Found, Person, note, note_by_trajectory
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import Event
from stepstream.topics.events import new_trace_export

ADA = Person("default", "ada")
NO_CODEC = cast(Codec, None)


def event(topic: str, record: Any, offset: int = 0) -> Event:
    return Event(topic, 0, offset, "", record)


def look(*events: Event, keys: frozenset[str] = frozenset()) -> Found:
    """Both passes over a log; `keys` are hers, and `bobs` is another's."""
    found = Found(set(keys))
    for each in events:
        note(found, ADA, each, NO_CODEC)
    for each in events:
        if each.topic != "open-traces":
            note_by_trajectory(found, ADA, each, {"bobs"})
    return found


def test_what_names_nobody_is_found_by_its_trajectory_wherever_it_stands() -> None:
    unnamed = make_feedback("t", comment="she churned")
    [theirs, silent] = make_steps("t", 2)
    found = look(
        event("feedback", unnamed, 3),
        event("governed-feedback", unnamed),
        event("feedback", make_feedback("else", comment="of somebody else's work"), 9),
        event("steps", theirs | {"user": "ada"}, 1),
        event("steps", silent, 2),
        event("governed-steps", silent),
    )
    assert found.own == {"t"}
    assert found.clear == {("feedback", 0): 3, ("steps", 0): 2}
    assert found.left == {"governed-feedback": 1, "governed-steps": 1}


def test_a_bare_value_and_what_names_another_person_stay() -> None:
    [step, other] = make_steps("t", 2)
    found = look(
        event("governed-steps", step | {"user": "ada", "seal_key": None}),
        event("feedback", make_feedback("t")),
        event("steps", other | {"user": "bob"}),
    )
    assert found.clear == {}
    assert found.left == {"governed-steps": 1}, "hers, from before records were sealed"


def test_whose_feedback_alone_they_gave_is_not_theirs() -> None:
    [step] = make_steps("t", 1)
    found = look(event("feedback", make_feedback("t", user="ada")), event("steps", step, 4))
    assert (found.trajectories, found.own) == ({"t"}, set())
    assert found.clear == {("feedback", 0): 0}


def test_a_trajectory_of_another_tenant_is_not_theirs_by_its_name() -> None:
    [theirs, silent] = make_steps("t", 2)
    found = look(event("steps", theirs | {"user": "ada"}, 1), event("steps", silent | {"tenant": "other"}, 2))
    assert found.clear == {("steps", 0): 1}


def test_labels_of_a_shared_trajectory_are_found_whosever_key_they_are_under() -> None:
    """Those of an earlier release are under the key of one person alone."""
    [step] = make_steps("t", 1)
    label = {"trajectory_id": "t", "tenant": "default", "user": None, "steps": [step]}
    found = look(
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
    assert found.left == {"labeled-trajectories": 1}, "what can still be read"


def test_labels_that_are_under_their_key_too_are_erased_with_it() -> None:
    hers, bobs = make_steps("t", 2)
    label = {"trajectory_id": "t", "tenant": "default", "user": None, "steps": [hers, bobs]}
    found = look(
        event("governed-steps", hers | {"user": None, "seal_key": "hers"}),
        event("governed-steps", bobs | {"user": None, "seal_key": "bobs"}),
        event("labeled-trajectories", label | {"seal_key": "bobs+hers"}, 4),
        # From before she came in, and from before labels were sealed.
        event("labeled-trajectories", label | {"seal_key": "bobs", "steps": [bobs]}, 5),
        event("labeled-trajectories", label | {"user": "bob", "seal_key": None}, 6),
        keys=frozenset({"hers"}),
    )
    assert found.sealed == 2
    assert found.labels == {(0, 4), (0, 6)}
    assert found.left == {"labeled-trajectories": 1}


def test_open_traces_that_name_them_are_found() -> None:
    told = [
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
    found = look(*(event("open-traces", record, offset) for offset, record in enumerate(told)))
    assert found.clear == {("open-traces", 0): 0}


def test_what_was_found_survives_an_attempt_that_is_cut_off() -> None:
    found = Found({"k"}, {"t", "u"}, {"t"}, {(0, 4)})
    again = Found()
    again.merge(Found.unpack(found.pack()))
    assert (again.key_ids, again.trajectories, again.own, again.labels) == ({"k"}, {"t", "u"}, {"t"}, {(0, 4)})
