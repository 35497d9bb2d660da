"""The reward specification of a trajectory."""

import pytest

from stepstream.config import SettingsError
from stepstream.jobs.rewards.spec import (
    RewardSpec,
    VersionedSpec,
)
from stepstream.jobs.rewards.spec_lookup import closest, next_version, parse_record
from stepstream.topics.events import new_reward_specification


def test_the_closest_specification_applies() -> None:
    def declared(name: str, environments: list[str], agents: list[str]) -> VersionedSpec:
        return VersionedSpec(
            RewardSpec.model_validate({"name": name, "environments": environments, "agents": agents}), 1
        )

    known = [
        declared("all", ["*"], ["*"]),
        declared("shops", ["shop-*"], ["*"]),
        declared("shop-1", ["shop-1", "shop-10"], ["*"]),
        declared("ann", ["*"], ["ann"]),
        declared("again", ["shop-*"], ["*"]),
        declared("nobody", [], ["*"]),
    ]

    def ruling(environment: str, agent: str) -> str:
        found = closest(known, environment, agent)
        assert found is not None
        return found.spec.name

    assert [ruling("bank", "x"), ruling("shop-2", "x"), ruling("shop-1", "x")] == ["all", "again", "shop-1"]
    assert ruling("shop-1", "ann") == "ann"
    assert closest(known[1:3], "bank", "x") is None


def test_versions_increase_by_name_and_an_invalid_record_is_an_error() -> None:
    record = new_reward_specification(
        event_id="r", occurred_at_us=0, name="a", version=3, digest="", document="name = 'a'\ngamma = 2\n"
    )
    assert (next_version({"a": record}, "a"), next_version({"a": record}, "b")) == (4, 1)
    with pytest.raises(SettingsError, match="version 3 of reward specification 'a' cannot be read: gamma"):
        parse_record(record)
    assert parse_record({**record, "document": "name = 'a'\n"}).version == 3
