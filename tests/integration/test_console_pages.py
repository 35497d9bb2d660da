"""Test what the console's pages of trajectories, rewards, tools and people get from a real store."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from console_trajectories import HOSTILE, LONG, plant, put
from sample_records import alarm

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.migrate import migrate
from stepstream.jobs.clickhouse.rollup_refresh import refresh
from stepstream.services.console.api.curves import curves
from stepstream.services.console.api.overview import overview
from stepstream.services.console.api.people import people, release
from stepstream.services.console.api.review import review, verdict
from stepstream.services.console.api.rewards import rewards
from stepstream.services.console.api.tools import tools
from stepstream.services.console.api.trajectories import compare, status, step, trajectories, trajectory
from stepstream.services.console.endpoints import BadRequest, Call, Endpoint, Services
from stepstream.services.console.store import Store
from stepstream.services.console.trajectories.facts import facts_of
from stepstream.services.console.trajectories.timeline import find
from stepstream.services.console.users import User

ADMIN = User("root", "admin", "")
OF_DEFAULT = User("ada", "operator", "default")
OF_ACME = User("bob", "operator", "acme")
ALARMS = [
    alarm(
        alarm_id=text,
        tenant=tenant,
        kind=kind,
        agent=agent,
        model="planted",
        environment=environment,
        rising="outcome",
        message=text,
    )
    for text, tenant, kind, agent, environment in (
        ("of default", "default", "success", "a", ""),
        ("of acme", "acme", "success", "a", ""),
        ("of elsewhere", "acme", "success", "a", "elsewhere"),
        ("of a model", "", "engine_gap", "", ""),
    )
]
ID = "018f0000-0000-7000-8000-000000000001"


class Log:
    """Keeps what would be written to Kafka."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str, Any]] = []

    def publish(self, topic: str, key: str, record: Any) -> None:
        self.written.append((topic, key, record))


@pytest.fixture(scope="module")
def services(own_database: Callable[[str], Settings]) -> Iterator[Services]:
    settings = own_database("console_pages")
    migrate(settings)
    plant(settings)
    put(settings, *(("alarms", one) for one in ALARMS))
    store = Store(settings)
    yield cast(Services, SimpleNamespace(settings=settings, store=store, log=Log()))
    store.close()


@pytest.fixture
def ask(services: Services) -> Callable[..., Any]:
    def call(endpoint: Endpoint, user: User = ADMIN, body: Any = None, **parameters: str) -> Any:
        request = Call(user, services, parameters, body or {})
        return endpoint.read(request) if endpoint.read is not None else cast(Any, endpoint.act)(request)

    return call


def names(answer: Any) -> list[str]:
    return [row["trajectory_id"] for row in answer["trajectories"]]


def test_a_search_returns_the_newest_first(ask: Callable[..., Any]) -> None:
    answer = ask(trajectories)
    assert names(answer) == ["secret", "hostile", "child", "right", "left"]
    assert (answer["next"], answer["days"]) == ("", 90)
    assert ask(trajectories, since="1h")["days"] == 0


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"agent": "helper"}, ["child"]),
        ({"agent": HOSTILE}, ["hostile"]),
        ({"version": "2"}, ["right"]),
        ({"outcome": "success"}, ["left"]),
        ({"outcome": "failure"}, ["right"]),
        ({"outcome": "none", "agent": "helper"}, ["child"]),
        ({"outcome": "held"}, ["hostile"]),
        ({"outcome": "error", "group": "g"}, ["right", "left"]),
        ({"tool": "get", "group": "g"}, ["right", "left"]),
        ({"tool": "put"}, []),
        ({"reward_least": "0.9"}, ["left"]),
        ({"reward_most": "0.1"}, ["right"]),
        ({"text": "APPLES"}, ["left"]),
        ({"text": "buy observation", "group": "g"}, ["right", "left"]),
        ({"text": "nowhere"}, []),
        ({"id": "le"}, ["left"]),
        ({"agent": "' OR 1 --"}, []),
    ],
)
def test_a_search_filters(ask: Callable[..., Any], parameters: dict[str, str], found: list[str]) -> None:
    assert names(ask(trajectories, **parameters)) == found


def test_a_search_pages_by_key(ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepstream.services.console.trajectories.search.PAGE", 2)
    monkeypatch.setattr("stepstream.services.console.api.trajectories.PAGE", 2)
    pages, after = [], ""
    for _ in range(3):
        answer = ask(trajectories, after=after)
        pages.append(names(answer))
        after = answer["next"]
    assert pages == [["secret", "hostile"], ["child", "right"], ["left"]]
    assert after == ""
    with pytest.raises(BadRequest, match="cursor"):
        ask(trajectories, after="x")
    assert names(ask(trajectories, after=f"{2**53 - 1}/x/y"))  # the greatest time that a cursor may have


def test_a_trajectory_shows_steps_rewards_tree_group_and_reason(ask: Callable[..., Any]) -> None:
    answer = ask(trajectory, id="left")
    assert [one["response"]["content"] for one in answer["steps"]] == ["look", "buy apples"]
    last = answer["steps"][-1]
    assert (last["reward"], last["return_to_go"], last["redactions"]) == (1.0, 1.0, {"email": 1})
    assert [(one["name"], one["value"], one["source"]) for one in last["components"]] == [
        ("outcome", 1.0, "environment")
    ]
    assert last["response"]["tool_calls"][0]["arguments"] == '{"page": 1}'
    assert [(node["trajectory_id"], node["depth"]) for node in answer["tree"]["nodes"]] == [("left", 0), ("child", 1)]
    assert ask(trajectory, id="child")["tree"] == answer["tree"]
    assert [row["trajectory_id"] for row in answer["group"]] == ["left", "right"]
    assert [row["name"] for row in answer["feedback"]] == ["outcome", "quality", "shadow.quality"]
    assert answer["feedback"][0]["comment"] == HOSTILE
    assert ask(status, id="left")["state"] == "not_trainable"


def test_the_reason_reads_only_the_days_of_the_trajectory(services: Services) -> None:
    asked: list[str] = []

    def query(sql: str, **parameters: Any) -> list[Any]:
        asked.append(sql)
        return services.store.query(sql, parameters)

    for name in ("left", "child", "hostile"):
        found = find(partial(query, tenant=""), "default", name)
        assert found is not None
        asked.clear()
        facts = facts_of(query, "default", name, (found.first_ms, found.last_ms))
        assert facts == facts_of(query, "default", name)
        assert facts.steps["count"] > 0
        assert facts.label is not None
    unbounded = [sql for sql in asked if "{first:Int64}" not in sql and "{before:Int64}" not in sql]
    # Neither table has partitions: their keys begin with the trajectory or model.
    assert all("FROM training_decisions" in sql or "FROM checkpoints" in sql for sql in unbounded)


def test_long_texts_are_cut_until_they_are_asked_for(ask: Callable[..., Any]) -> None:
    cut = ask(trajectory, id="hostile")["steps"][1]["response"]
    assert (len(cut["content"]), cut["lengths"]) == (20_000, {"content": len(LONG)})
    assert ask(step, id="hostile", step="1")["step"]["response"]["content"] == LONG
    with pytest.raises(BadRequest, match="no such step"):
        ask(step, id="hostile", step="9")


def test_two_attempts_differ_first_where_the_answers_do(ask: Callable[..., Any]) -> None:
    answer = ask(compare, left="left", right="right")
    assert answer["difference"] == {"step": 1, "part": "content", "item": 0, "at": len("buy ")}
    assert ask(compare, left="left", right="left")["difference"] is None


def test_tenants_never_see_each_other(ask: Callable[..., Any]) -> None:
    assert names(ask(trajectories, OF_ACME)) == ["secret"]
    assert "secret" not in names(ask(trajectories, OF_DEFAULT))
    for endpoint in (trajectory, step, status):
        with pytest.raises(BadRequest, match="tenant acme has no step"):
            ask(endpoint, OF_ACME, id="left", tenant="default")
    with pytest.raises(BadRequest, match="tenant acme"):
        ask(compare, OF_ACME, left="secret", right="left", tenant="default")
    assert [row["user"] for row in ask(people, OF_ACME)["consents"]] == ["bob"]
    assert ask(people, OF_ACME)["quarantine"] == []
    assert ask(review, OF_ACME)["disagreement"] == []
    for endpoint, body in (
        (verdict, {"trajectory_id": "left", "event_id": ID, "scale": 1, "tenant": "default"}),
        (release, {"trajectory_ids": ["hostile"], "tenant": "default"}),
    ):
        with pytest.raises(BadRequest, match="tenant acme"):
            ask(endpoint, OF_ACME, body)


def test_people_shows_consent_erasures_and_quarantine(ask: Callable[..., Any]) -> None:
    answer = ask(people)
    assert {(row["tenant"], row["user"], row["consent"]) for row in answer["consents"]} == {
        ("default", "ada", "analyse"),
        ("acme", "bob", "none"),
    }
    assert [(row["subject"], row["finished_at"]) for row in answer["erasures"]] == [("cd" * 20, None)]
    assert [(row["trajectory_id"], row["reasons"]) for row in answer["quarantine"]] == [
        ("hostile", ["near_duplicate:x"])
    ]


def test_a_release_is_a_decision_of_the_person(ask: Callable[..., Any], services: Services) -> None:
    done = ask(release, OF_DEFAULT, {"trajectory_ids": ["hostile"]})
    assert done.target == "default: hostile"
    topic, key, record = cast(Any, services.log).written[-1]
    assert (topic, key, record["action"], record["by"], record["tenant"]) == (
        "curation",
        "hostile",
        "release",
        "ada",
        "default",
    )
    refused: tuple[Any, ...] = ([], ["nobody"], ["left"], ["hostile", "left"], "x")  # nobody holds `left`
    wrong: list[dict[str, Any]] = [{}, *({"trajectory_ids": ids} for ids in refused)]
    for body in wrong:
        with pytest.raises(BadRequest):
            ask(release, OF_DEFAULT, body)


def test_a_verdict_is_feedback_with_the_person_as_source(ask: Callable[..., Any], services: Services) -> None:
    body = {
        "trajectory_id": "left",
        "step_index": 1,
        "event_id": ID,
        "scale": 4,
        "tags": ["wrong tool"],
        "comment": "c",
    }
    done = ask(verdict, OF_DEFAULT, body | {"correction": "buy plums"})
    said, tag = (record for _, _, record in cast(Any, services.log).written[-2:])
    assert done.answer["event_ids"] == [said["event_id"], tag["event_id"]]
    assert (said["name"], said["value"], said["comment"], said["demonstration"]) == ("review", 0.75, "c", "buy plums")
    assert (said["source"], said["tenant"], said["step_index"], said["consent"]) == (
        "person:ada",
        "default",
        1,
        "train",
    )
    assert said["producer"].startswith("console/")
    assert (tag["name"], tag["category"]) == ("review_tag", "wrong tool")
    again = ask(verdict, OF_DEFAULT, body | {"correction": "buy plums"})
    assert again.answer == done.answer


def test_the_queues_name_disagreement_and_low_certainty(ask: Callable[..., Any]) -> None:
    answer = ask(review)
    assert [(row["trajectory_id"], row["signal"]) for row in answer["disagreement"]] == [("left", "quality")]
    assert {row["trajectory_id"] for row in answer["unsure"]} == {"left", "right", "child", "hostile", "secret"}
    assert 0 < answer["unsure"][0]["certainty"] < 1


def test_rewards_and_tools_follow_the_rollups(ask: Callable[..., Any], services: Services) -> None:
    with connection.connect(services.settings, database=services.settings.clickhouse.database) as client:
        refresh(client)
    # All was planted within seconds: the points are those of the facts.
    shown = ask(rewards)
    assert ask(tools)["series"] == []
    assert shown["bucket_s"] == 10
    assert {(row["name"], row["kind"]) for row in shown["components"]} == {("outcome", "term")}
    assert sum(row["n"] for row in shown["components"]) == 5
    assert sum(row["n"] for row in ask(rewards, OF_ACME)["components"]) == 1
    of_tool = ask(tools, OF_DEFAULT, tool="get")
    assert [(row["tool"], row["calls"], row["failed"]) for row in of_tool["tools"]] == [("get", 7, 7)]
    assert of_tool["bucket_s"] == 10
    assert sum(row["calls"] for row in of_tool["series"]) == sum(row["failed"] for row in of_tool["series"]) == 7


def test_alarms_are_shown_to_users_of_their_tenant(ask: Callable[..., Any]) -> None:
    of_acme = {"of acme", "of elsewhere"}
    seen = {ADMIN: {"of default", *of_acme, "of a model"}, OF_DEFAULT: {"of default"}, OF_ACME: of_acme}
    for user, expected in seen.items():
        for page in (overview, rewards):
            assert {row["message"] for row in ask(page, user)["alarms"]} == expected
        assert ask(overview, user)["active_alarms"] == len(expected)
    # No trajectory is of the environment elsewhere.
    queued = [(row["message"], row["tenant"]) for row in ask(review)["alarms"]]
    assert set(queued) == {(f"of {one}", one) for one in ("default", "acme")} | {
        ("of a model", one) for one in ("default", "acme")
    }
    assert {row["message"] for row in ask(review, OF_ACME)["alarms"]} == {"of acme"}


def test_a_user_of_all_tenants_may_choose_one(ask: Callable[..., Any], services: Services) -> None:
    with connection.connect(services.settings, database=services.settings.clickhouse.database) as client:
        refresh(client)
    for user, tenant, trajectories_, calls in ((ADMIN, "", 5, 8), (ADMIN, "acme", 1, 1), (OF_DEFAULT, "acme", 4, 7)):
        assert ask(overview, user, tenant=tenant)["totals"]["trajectories"] == trajectories_
        rows = ask(curves, user, tenant=tenant, model="planted")["success"]
        assert sum(row["outcomes"] for row in rows) == (0 if trajectories_ == 1 else 2)
        assert sum(row["n"] for row in ask(rewards, user, tenant=tenant)["components"]) == trajectories_
        assert [row["calls"] for row in ask(tools, user, tenant=tenant)["tools"]] == [calls]
    for page in (overview, curves, rewards, tools):
        assert ask(page, tenant="acme")["tenants"] == ["acme", "default"]
        assert ask(page, OF_ACME)["tenants"] == []


def test_long_ranges_read_the_rollup_and_show_the_same(ask: Callable[..., Any], services: Services) -> None:
    with connection.connect(services.settings, database=services.settings.clickhouse.database) as client:
        refresh(client)
    day, month = (ask(overview, since=since, model="planted") for since in ("24h", "30d"))
    assert (day["totals"]["trajectories"], day["totals"]["outcomes"], day["totals"]["successes"]) == (5, 2, 1)
    for name in ("totals", "success", "staleness"):
        assert day[name] == month[name], name
    shown = [
        [
            (row["version"], row["trajectories"], row["successes"], row["low"], row["reward"])
            for row in answer["success"]
        ]
        for answer in (ask(curves, since=since, model="planted", agent="a") for since in ("24h", "30d"))
    ]
    assert len(shown[0]) == 2
    assert shown[0] == shown[1]


def test_a_wrong_parameter_is_named(ask: Callable[..., Any]) -> None:
    for parameters, message in (
        ({"outcome": "x"}, "outcome must be"),
        ({"reward_least": "much"}, "reward_least must be"),
        ({"version": "-1"}, "version must be"),
        ({"text": "x" * 501}, "text is longer"),
    ):
        with pytest.raises(BadRequest, match=message):
            ask(trajectories, **parameters)
    with pytest.raises(BadRequest, match="id is missing"):
        ask(trajectory)
