"""Test the feedback that a person's verdict becomes."""

from typing import Any

import pytest

from stepstream.services.console.api.review import verdict_items
from stepstream.services.console.endpoints import BadRequest

ID = "018f0000-0000-7000-8000-000000000001"


def items(**body: Any) -> list[Any]:
    return verdict_items({"trajectory_id": "t", "event_id": ID} | body, "ada", "default")


def test_the_scale_becomes_a_value_from_0_to_1() -> None:
    assert [items(scale=point)[0].value for point in (1, 2, 3, 4, 5)] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_each_tag_is_an_item_with_an_id_of_its_own() -> None:
    made = items(scale=1, tags=["a", "b", "a"], step_index=2)
    assert [(item.name, item.category, item.step_index) for item in made] == [
        ("review", None, 2),
        ("review_tag", "a", 2),
        ("review_tag", "b", 2),
    ]
    assert len({item.event_id for item in made}) == 3
    assert items(scale=1, tags=["b", "a"])[1].event_id == made[2].event_id


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "says nothing"),
        ({"scale": 6}, "scale must be"),
        ({"scale": True}, "scale must be"),
        ({"scale": 1, "event_id": "x"}, "event_id"),
        ({"tags": "wrong"}, "tags must be"),
        ({"tags": ["x"] * 11}, "tags must be"),
        ({"tags": ["x" * 300]}, "category"),
        ({"scale": 1, "step_index": -1}, "step_index"),
        ({"scale": 1, "source": "judge"}, "unknown field source"),
        ({"scale": 1, "consent": "train"}, "unknown field consent"),
        ({"scale": 1, "trajectory_id": ""}, "trajectory_id"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        items(**body)
