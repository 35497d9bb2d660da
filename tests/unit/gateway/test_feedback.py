"""Posted feedback is checked field by field; an error names the field."""

import json
from typing import Any

import orjson
import pytest
from api_key_records import key_grant

from stepstream.core.slices import at_once
from stepstream.services.gateway.errors import BadRequest, UnsupportedType
from stepstream.services.gateway.feedback import check_content_type, feedback_event, parse_feedback
from stepstream.services.gateway.identity import Identity
from stepstream.topics.events import Feedback

ID = "01a1ff27-e4b3-74a7-81e7-cfe07aac2c0e"
DEEP = b'{"a":' * 255 + b"1" + b"}" * 255
IDENTITY = Identity(trajectory_id="unused", agent="a", consent="analyse", tenant="acme", user="u")


def event(**fields: Any) -> Feedback:
    items, _ = at_once(parse_feedback(orjson.dumps({"trajectory_id": "t", "name": "outcome"} | fields)))
    return feedback_event(items[0], IDENTITY, 5, "gateway/0")


def test_an_outcome_may_end_its_trajectory() -> None:
    posted = event(
        value=True, ends_trajectory="terminated", last_step_index=3, event_id=ID.upper(), source="environment"
    )
    expected = {
        "event_id": ID,
        "occurred_at_us": 5,
        "trajectory_id": "t",
        "value": 1.0,
        "end": "terminated",
        "last_step_index": 3,
        "source": "environment",
        "consent": "analyse",
        "tenant": "acme",
        "user": "u",
    }
    assert expected.items() <= posted.items()


def test_an_item_overrides_the_headers_and_gets_an_id() -> None:
    posted = event(comment="good", consent="train", tenant="other", user="v")
    assert (posted["consent"], posted["tenant"], posted["user"], posted["source"]) == ("train", "other", "v", "user")
    assert posted["event_id"] != event(comment="good")["event_id"]


def test_a_demonstration_may_be_a_message() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "get", "arguments": "{}"}}]}
    assert orjson.loads(event(demonstration=message)["demonstration"] or "") == message
    assert event(demonstration="as text")["demonstration"] == "as text"


def test_a_list_of_items_is_accepted() -> None:
    body = b'[{"trajectory_id":"t","name":"n","value":0.5},{"trajectory_id":"t","name":"n","value":2}]'
    items, is_list = at_once(parse_feedback(body))
    assert is_list
    assert [item.value for item in items] == [0.5, 2]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "not JSON"),
        (b"3", "body"),
        (b'{"name":"n","value":1}', "trajectory_id: Field required"),
        (b'{"trajectory_id":"t","name":"n"}', "contains no feedback"),
        (b'{"trajectory_id":"t","name":"n","value":"1"}', "value: must be a number, true or false"),
        (b'{"trajectory_id":"t","name":"n","value":1e300}', "value: must be at most 1e\\+15"),
        (b'{"trajectory_id":"t","name":"n","demonstration":["x"]}', "demonstration: must be a text, or"),
        (b'{"trajectory_id":"t","name":"","value":1}', "name"),
        (b'{"trajectory_id":"t","name":"n","vlaue":1}', "vlaue: Extra inputs are not permitted"),
        (b'{"trajectory_id":"t","name":"n","value":1,"step_index":-1}', "step_index"),
        (b'{"trajectory_id":"t","name":"n","value":1,"event_id":"x"}', "event_id"),
        (b'{"trajectory_id":"t","name":"n","value":1,"last_step_index":1}', "only with ends_trajectory"),
        (b'{"trajectory_id":"t","name":"n","ends_trajectory":"open"}', "'terminated' or 'truncated'"),
        (b'{"trajectory_id":"t","name":"n","value":1,"consent":"yes"}', "consent"),
        (b'[{"trajectory_id":"t","name":"n","value":1},{}]', "item 1: "),
        (b'{"trajectory_id":"t","name":"n","demonstration":%b}' % DEEP, "demonstration: is nested too deeply"),
        (b"[" * 70_000, "not JSON"),
        (b"[" * 70_000 + b"]" * 70_000, "not JSON: it is nested too deeply"),
    ],
)
def test_an_error_names_the_invalid_field(body: bytes, error: str) -> None:
    with pytest.raises(BadRequest, match=error):
        at_once(parse_feedback(body))


LONG = {"trajectory_id": "t", "name": "n", "value": 1, "comment": 'x, ] "\\' * 400}


@pytest.mark.parametrize("indent", [None, 1])
def test_a_long_list_is_read_like_a_short_one(indent: int | None) -> None:
    body = json.dumps([LONG | {"step_index": number} for number in range(50)], indent=indent).encode()
    assert len(body) > 64 * 1024
    work = parse_feedback(body + b" \n")
    assert sum(1 for _ in work) >= 100  # it may pause at each item
    items, is_list = at_once(parse_feedback(body))
    assert is_list
    assert [item.step_index for item in items] == list(range(50))
    assert {item.comment for item in items} == {LONG["comment"]}


@pytest.mark.parametrize(
    ("of", "by"), [(b"]", b",]"), (b"]", b""), (b"]", b"]]"), (b"]", b",NaN]"), (b"[", b"[,"), (b"}, {", b"} {")]
)
def test_a_malformed_long_list_is_refused(of: bytes, by: bytes) -> None:
    body = json.dumps([LONG] * 50).encode()
    at = body.rindex(of) if of == b"]" else body.index(of)
    with pytest.raises(BadRequest, match="not JSON"):
        at_once(parse_feedback(body[:at] + by + body[at + len(of) :]))


@pytest.mark.parametrize("kind", [b"application/json", b"Application/JSON; charset=utf-8", b"application/vnd.x+json"])
def test_json_is_accepted(kind: bytes) -> None:
    check_content_type([(b"content-type", kind)])


@pytest.mark.parametrize("kind", [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data", b""])
def test_types_that_any_page_may_post_are_refused(kind: bytes) -> None:
    with pytest.raises(UnsupportedType, match="content-type: application/json"):
        check_content_type([(b"content-type", kind)] if kind else [])


@pytest.mark.parametrize(
    ("ceiling", "asked", "expected"),
    [
        ("train", "train", "train"),
        ("analyse", "train", "analyse"),
        ("analyse", "none", "none"),
        ("none", "train", "none"),
        ("train", None, "analyse"),
        ("none", None, "none"),
    ],
)
def test_a_keys_ceiling_lowers_the_consent_of_feedback(ceiling: str, asked: str | None, expected: str) -> None:
    """Without a consent of its own, an item has that of the headers, here `analyse`."""
    fields = {"trajectory_id": "t", "name": "n", "value": 1} | ({} if asked is None else {"consent": asked})
    items, _ = at_once(parse_feedback(orjson.dumps(fields)))
    posted = feedback_event(items[0], IDENTITY, 5, "gateway/0", key_grant(consent=ceiling, tenant="own"))
    assert (posted["consent"], posted["tenant"]) == (expected, "own")
