"""Sealed records open unchanged with all keys, and not at all without one."""

import io
from copy import deepcopy
from typing import Any

import fastavro
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_records import feedback, step, trajectory

from stepstream.crypto.sealing import (
    Layout,
    SealBroken,
    is_erased,
    key_ids,
    layout_of,
    mark_erased,
    open_sealed,
    seal,
    without_personal_fields,
)
from stepstream.schemas import schema
from stepstream.topics.catalogue import SEALED_TOPICS, TOPICS
from stepstream.topics.events import (
    new_conversation,
    new_governance,
    new_labeled_step,
    new_message,
    new_tool_call,
    new_training_sequence,
)

KEY = AESGCM(b"k" * 32)
ONE = {"k1": KEY}
SECRET = "Ada Lovelace lives at 12 St James's Square"

texts = st.text(st.characters(codec="utf-8"), max_size=20)
calls = st.builds(
    lambda n, a, r: new_tool_call(call_id=n, name=n, arguments=a, result=r), texts, texts, st.none() | texts
)
messages = st.builds(
    lambda role, content, tools, reasoning: new_message(
        role=role, content=content, tool_calls=tools, reasoning=reasoning
    ),
    texts,
    texts,
    st.lists(calls, max_size=2),
    st.none() | texts,
)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
floats = st.lists(st.floats(-100, 0, width=32), max_size=5)

steps = st.builds(
    lambda **fields: step(**fields),
    event_id=texts,
    user=texts,
    messages=st.lists(messages, max_size=3),
    prompt_token_ids=ids,
    response=messages,
    response_token_ids=ids,
    response_logprobs=floats,
    loss_mask=st.lists(st.booleans(), max_size=5),
    error=st.none() | texts,
    prompt_shared_digest=st.none() | texts,
    governed=st.none() | st.just(new_governance(source_event_id="s", job="govern@1", trainable=True)),
)
feedbacks = st.builds(
    lambda **fields: feedback(**fields),
    user=texts,
    category=st.none() | texts,
    comment=st.none() | texts,
    demonstration=st.none() | texts,
)
labels = st.builds(
    lambda user, others, signature, sequences, entries, conversations: trajectory(
        user=user,
        other_users=others,
        signature=signature,
        sequences=sequences,
        steps=entries,
        conversations=conversations,
        trainable=True,
    ),
    texts,
    st.lists(texts, max_size=2),
    st.lists(st.integers(0, 2**32 - 1), max_size=4),
    st.lists(
        st.builds(
            lambda tokens, logprobs: new_training_sequence(token_ids=tokens, logprobs=logprobs),
            ids,
            floats,
        ),
        max_size=2,
    ),
    st.lists(
        st.builds(
            lambda index, tools, error, demonstration: new_labeled_step(
                step_index=index,
                event_id="e",
                reward=0.5,
                return_to_go=0.5,
                tool_calls=tools,
                error=error,
                demonstration=demonstration,
            ),
            st.integers(0, 9),
            st.lists(calls, max_size=2),
            st.none() | texts,
            st.none() | texts,
        ),
        max_size=3,
    ),
    st.lists(
        st.builds(
            lambda messages, tools: new_conversation(messages=messages, tool_definitions=tools),
            st.lists(messages, max_size=2),
            st.none() | texts,
        ),
        max_size=2,
    ),
)
records = st.one_of(
    st.tuples(st.sampled_from(["steps", "governed-steps"]), steps),
    st.tuples(st.sampled_from(["feedback", "governed-feedback"]), feedbacks),
    st.tuples(st.just("labeled-trajectories"), labels),
)


def through_avro(topic: str, record: Any) -> Any:
    """Write and read a record with the same schema."""
    parsed = fastavro.parse_schema(schema(TOPICS[topic].schema))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, record)
    return fastavro.schemaless_reader(io.BytesIO(out.getvalue()), parsed, None)


@given(records)
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_a_sealed_record_opens_unchanged(example: tuple[str, Any]) -> None:
    topic, record = example
    layout = layout_of(topic)
    sealed = through_avro(topic, seal(layout, topic, record, ONE))
    assert sealed["user"] is None
    assert is_erased(sealed)
    opened = open_sealed(layout, layout, topic, sealed, ONE)
    assert opened == through_avro(topic, record)


@given(records, st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_a_changed_blob_does_not_open(example: tuple[str, Any], data: Any) -> None:
    topic, record = example
    layout = layout_of(topic)
    sealed = through_avro(topic, seal(layout, topic, record, ONE))
    place = data.draw(st.integers(0, len(sealed["sealed"]) - 1))
    blob = bytearray(sealed["sealed"])
    blob[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealBroken):
        open_sealed(layout, layout, topic, {**sealed, "sealed": bytes(blob)}, ONE)
    with pytest.raises(SealBroken):
        open_sealed(layout, layout, topic, {**sealed, "sealed": sealed["sealed"][:place]}, ONE)


@given(labels, st.sets(st.text("0123456789abcdef", min_size=32, max_size=32), min_size=1, max_size=4), st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_record_of_several_persons_opens_with_all_keys_only(record: Any, names: set[str], data: Any) -> None:
    topic = "labeled-trajectories"
    layout = layout_of(topic)
    keys = {name: AESGCM(name.encode()) for name in data.draw(st.permutations(sorted(names)))}
    sealed = through_avro(topic, seal(layout, topic, record, keys))
    assert sealed["seal_key"] == "+".join(sorted(names))
    assert key_ids(sealed["seal_key"]) == sorted(names)
    assert open_sealed(layout, layout, topic, dict(sealed), keys) == through_avro(topic, record)
    missing_key = data.draw(st.sampled_from(sorted(names)))
    with pytest.raises(KeyError):
        open_sealed(layout, layout, topic, dict(sealed), {name: keys[name] for name in names - {missing_key}})
    with pytest.raises(SealBroken):
        open_sealed(layout, layout, topic, dict(sealed), keys | {missing_key: KEY})


@given(records)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
def test_the_format_for_one_person_is_that_of_earlier_releases(example: tuple[str, Any]) -> None:
    """A format byte, a nonce and one layer, bound to topic, record and key: records of earlier releases open."""
    topic, record = example
    layout, nonce = layout_of(topic), b"n" * 12
    bound_to = f"{topic}\x1f{record['event_id']}\x1fk1".encode()
    blob = b"\x01" + nonce + KEY.encrypt(nonce, layout.write(record), bound_to)
    before = through_avro(topic, {**without_personal_fields(layout, record), "seal_key": "k1", "sealed": blob})
    assert open_sealed(layout, layout, topic, before, ONE) == through_avro(topic, record)
    now = seal(layout, topic, record, ONE)
    assert now["seal_key"] == "k1"
    assert KEY.decrypt(now["sealed"][1:13], now["sealed"][13:], bound_to) == layout.write(record)


@pytest.mark.parametrize("change", [{"event_id": "another"}, {"seal_key": "another"}])
def test_a_blob_does_not_open_in_another_record(change: dict[str, str]) -> None:
    layout = layout_of("steps")
    sealed = through_avro("steps", seal(layout, "steps", step(user="ada"), ONE))
    with pytest.raises(SealBroken, match="another record"):
        open_sealed(layout, layout, "steps", {**sealed, **change}, ONE | {"another": KEY})
    with pytest.raises(SealBroken):
        open_sealed(layout, layout, "governed-steps", dict(sealed), ONE)


@given(records)
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_an_erased_record_is_a_valid_untrainable_record(example: tuple[str, Any]) -> None:
    topic, record = example
    erased = mark_erased(through_avro(topic, seal(layout_of(topic), topic, record, ONE)))
    again = through_avro(topic, erased)
    assert again == erased
    assert is_erased(again)
    assert again["sealed"] is None
    assert through_avro(topic, without_personal_fields(layout_of(topic), again)) == again
    assert not again.get("trainable")
    assert not (again.get("governed") or {}).get("trainable")


def test_no_personal_text_stays_in_the_clear() -> None:
    message = new_message(role="user", content=SECRET, reasoning=SECRET)
    made: dict[str, Any] = {
        "steps": step(user=SECRET, messages=[message], response=message, error=SECRET, prompt_shared_digest=SECRET),
        "feedback": feedback(user=SECRET, category=SECRET, comment=SECRET, demonstration=SECRET),
        "labeled-trajectories": trajectory(
            user=SECRET,
            other_users=[SECRET],
            conversations=[new_conversation(messages=[message], tool_definitions=SECRET)],
            steps=[
                new_labeled_step(
                    step_index=0,
                    event_id="s",
                    reward=0.0,
                    return_to_go=0.0,
                    error=SECRET,
                    demonstration=SECRET,
                    tool_calls=[new_tool_call(call_id="1", name="get", arguments=SECRET)],
                )
            ],
        ),
    }
    for topic, record in made.items():
        assert SECRET not in str(seal(layout_of(topic), topic, record, ONE))


def test_a_later_schema_reads_a_blob_of_an_earlier_one() -> None:
    """A field added to a nested record later gets its default, in the blob as outside of it."""
    earlier = deepcopy(schema("Step"))
    text = str(earlier)
    assert "'reasoning'" in text
    message = next(f for f in earlier["fields"] if f["name"] == "messages")["type"]["items"]
    message["fields"] = [field for field in message["fields"] if field["name"] != "reasoning"]
    parsed = fastavro.parse_schema(earlier)
    written, known = Layout(parsed, TOPICS["steps"].personal), layout_of("steps")
    record = step(user="ada", messages=[{"role": "user", "content": SECRET}])
    sealed = seal(written, "steps", record, ONE)
    opened = open_sealed(written, known, "steps", dict(sealed), ONE)
    assert opened["messages"] == [new_message(role="user", content=SECRET)]


def test_labels_open_across_releases_with_and_without_other_users() -> None:
    topic, current = "labeled-trajectories", layout_of("labeled-trajectories")
    record = trajectory(user="ada", signature=[1], conversations=[new_conversation(messages=[], tool_definitions="x")])
    earlier_schema = deepcopy(schema("LabeledTrajectory"))
    earlier_schema["fields"] = [field for field in earlier_schema["fields"] if field["name"] != "other_users"]
    earlier_names = [name for name in current.personal if name != "other_users"]
    earlier = Layout(fastavro.parse_schema(earlier_schema), earlier_names)
    assert open_sealed(earlier, current, topic, seal(earlier, topic, record, ONE), ONE) == record
    current_in_earlier_release = Layout(fastavro.parse_schema(schema("LabeledTrajectory")), earlier_names)
    opened = open_sealed(current_in_earlier_release, earlier, topic, seal(current, topic, record, ONE), ONE)
    assert opened == record


def test_every_topic_with_a_sealed_field_declares_its_personal_fields() -> None:
    sealable = {
        topic.name
        for topic in TOPICS.values()
        if any(field["name"] == "sealed" for field in schema(topic.schema)["fields"])
    }
    assert sealable == SEALED_TOPICS
