"""Two tenants use the same names by every way in, and each guesses the other's: nothing of one reaches the other."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_fixtures import write_key
from scripted_upstream import ScriptedUpstream
from stack_fixtures import with_settings
from stack_world import World
from stream_records import make_ending, make_steps
from trace_collector import CollectedSpan, TraceCollector, collect_traces
from waiting import TIMEOUT_S, wait_until

from stepstream import sdk
from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.learner.data.attempt import attempt_of
from stepstream.learner.data.sequences import Limits
from stepstream.sdk.handle import TrajectoryInfo
from stepstream.sdk.recorder import Recorder
from stepstream.topics.events import new_message
from stepstream.topics.ids import now_us

PROCESSES = ("broker", "registry", "store", "govern", "label", "measure", "store-writer", "gateway")
TENANTS = ("first", "second")
SECRET = {"first": "walnut-4711", "second": "saffron-0815"}
WAYS = ("chat", "messages", "responses", "sdk", "kafka")
"""Ways in, each of which records a trajectory of its own name; OTLP and datasets are read beside them."""
TRACE = "0af7651916cd43dd8448eb211c80319c"
PERSON = "ann"
ONLY_FIRST = "only-first"


class Tenant:
    """Client of one tenant."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.secret, self.world = name, SECRET[name], world
        scopes = ["calls", "feedback", "otlp"]
        self._key = write_key(world.settings, tenant=name, scopes=scopes, consent="train")
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{world.settings.gateway.port}",
            headers={"x-stepstream-key": self._key, "x-stepstream-user": PERSON, "x-stepstream-group": "group"},
            timeout=TIMEOUT_S,
        )
        wait_until(lambda: self._http.get("/v1/models").status_code not in (401, 503))

    def close(self) -> None:
        self._http.close()

    def post(self, path: str, body: Any, trajectory: str = "", **headers: str) -> Any:
        """Post as this tenant, which also claims to be the other one."""
        claimed = {"x-stepstream-tenant": "first" if self.name == "second" else "second"}
        named = {"x-stepstream-trajectory": trajectory} if trajectory else {}
        reply = self._http.post(path, json=body, headers=claimed | named | headers)
        assert reply.status_code < 300, reply.text
        return reply.json()

    def call(self, trajectory: str) -> None:
        message = {"role": "user", "content": f"note {self.secret}"}
        self.post("/v1/chat/completions", {"model": "demo", "messages": [message]}, trajectory)

    def judge(self, trajectory: str, value: float, **fields: Any) -> None:
        item = {"trajectory_id": trajectory, "name": "outcome", "value": value, "comment": self.secret}
        self.post("/v1/feedback", item | {"ends_trajectory": "terminated", "last_step_index": 0} | fields)

    def use_every_way(self, folder: Path) -> None:
        """Record a trajectory by each way in."""
        self.call("chat")
        prompt = f"note {self.secret}"
        claude = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": prompt}]}
        self.post("/v1/messages", claude, "messages")
        self.response = self.post("/v1/responses", {"model": "demo", "input": prompt}, "responses")["id"]
        for trajectory in ("chat", "messages", "responses"):
            self.judge(trajectory, 1.0)
        self._use_sdk()
        message = new_message(role="user", content=prompt)
        fields: dict[str, Any] = {
            "tenant": self.name,
            "user": PERSON,
            "group_id": "group",
            "task_id": "task",
            "messages": [message],
        }
        self.world.send("steps", *make_steps("kafka", 1, at_us=now_us(), **fields))
        self.world.send_and_flush("feedback", make_ending("kafka", 1, tenant=self.name))
        self.export_trace(prompt)
        file = folder / f"{self.name}.jsonl"
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "noted"}]
        file.write_text(json.dumps({"id": "row", "messages": messages}) + "\n")
        words = ("import", str(file), "--format", "chat", "--consent", "train", "--dataset", "file", "--outcome", "1")
        assert self.world.run_json(*words, "--tenant", self.name)["trajectories"] == 1

    def _use_sdk(self) -> None:
        sink = sdk.MemorySink()
        info = TrajectoryInfo(agent="a", consent="train", tenant=self.name, user=PERSON, group_id="group")
        trajectory = sdk.Trajectory(Recorder(self.world.settings, sink), "sdk", info)
        with trajectory.step([{"role": "user", "content": self.secret}], model="demo") as step:
            step.response("noted")
        trajectory.feedback("outcome", 1.0)
        trajectory.end()
        for topic, key, record in sink.events:
            self.world.send(topic, record, key=key)

    def export_trace(self, prompt: str) -> None:
        """Export one call, whose trace and span the other tenant has too."""
        request = [{"role": "user", "parts": [{"type": "text", "content": prompt}]}]
        reply = [{"role": "assistant", "parts": [{"type": "text", "content": "noted"}], "finish_reason": "stop"}]
        span = {
            "traceId": TRACE,
            "spanId": "b7ad6b7169203331",
            "name": "chat demo",
            "startTimeUnixNano": str(now_us() * 1000),
            "endTimeUnixNano": str(now_us() * 1000 + 1),
            "attributes": attributes(
                gen_ai__operation__name="chat",
                gen_ai__request__model="demo",
                gen_ai__response__id="chatcmpl-1",
                gen_ai__input__messages=json.dumps(request),
                gen_ai__output__messages=json.dumps(reply),
                user__id=PERSON,
            ),
        }
        self.post("/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})

    def evaluate(self, name: str, **subject: str) -> None:
        """Export an evaluation of a trace or of a response."""
        about = attributes(
            gen_ai__evaluation__name=name,
            gen_ai__evaluation__score__label="good",
            gen_ai__evaluation__explanation=self.secret,
            **subject,
        )
        time_ns = str(now_us() * 1000)
        log = {"eventName": "gen_ai.evaluation.result", "traceId": TRACE, "timeUnixNano": time_ns, "attributes": about}
        self.post("/v1/logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]})


def attributes(**values: str) -> list[dict[str, Any]]:
    return [{"key": name.replace("__", "."), "value": {"stringValue": value}} for name, value in values.items()]


WAY_OF_A_CALL = [
    ("stepstream-gateway", "call chat"),
    ("stepstream-govern", "process steps"),
    ("stepstream-govern", "send governed-steps"),
    ("stepstream-label", "process governed-steps"),
    ("stepstream-label", "send labeled-trajectories"),
    ("stepstream-store", "process labeled-trajectories"),
]
"""Spans from a call to its label in the tables, with their processes."""


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceCollector]:
    with collect_traces() as collector:
        yield collector


@pytest.fixture(scope="module")
def world(
    collector: TraceCollector,
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    with ScriptedUpstream() as upstream:
        upstream.reply = lambda request: f"I heard: {request['messages'][-1]['content']}"
        settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("tenants")))
        gateway = {"upstreams": [upstream.url], "find_workers": False, "require_key": True}
        tracing = {"endpoint": collector.url}
        settings = with_settings(settings, gateway=gateway, otlp={"grace_s": 0.1}, tracing=tracing)
        with Stack(settings, PROCESSES) as stack, World(stack.settings) as made:
            yield made


@pytest.fixture(scope="module")
def tenants(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tenant]]:
    """Both tenants, after each used every way in and the second guessed what it could of the first."""
    both = {name: Tenant(name, world) for name in TENANTS}
    first, second = both.values()
    folder = tmp_path_factory.mktemp("files")
    for tenant in (first, second):
        tenant.use_every_way(folder)
        tenant.evaluate("quality")
        tenant.evaluate("fluency", gen_ai__response__id="chatcmpl-1")
    first.call(ONLY_FIRST)
    second.judge(ONLY_FIRST, 0.0)
    first.judge(ONLY_FIRST, 1.0)
    for name in (*WAYS, ONLY_FIRST):
        query = f"SELECT count() FROM trajectories FINAL WHERE trajectory_id = '{name}'"
        world.wait_for_value(query, 1 if name == ONLY_FIRST else 2)
    world.wait_for_value(f"SELECT uniqExact(tenant) FROM steps WHERE trajectory_id = '{TRACE}'", 2)
    world.wait_for_value("SELECT count() FROM feedback FINAL WHERE name IN ('quality', 'fluency')", 4)
    wait_until(lambda: {record["tenant"] for record in world.records("trajectory-stats")} >= set(TENANTS))
    query = f"SELECT count() FROM feedback FINAL WHERE trajectory_id = '{ONLY_FIRST}' AND tenant = 'second'"
    world.wait_for_value(query, 1)
    yield both
    for tenant in both.values():
        tenant.close()


def other(tenant: str) -> str:
    return TENANTS[1 - TENANTS.index(tenant)]


@pytest.mark.parametrize(
    "topic",
    [
        "steps",
        "feedback",
        "governed-steps",
        "governed-feedback",
        "labeled-trajectories",
        "trajectory-stats",
        "component-stats",
    ],
)
def test_no_record_of_a_tenant_has_the_others_text(world: World, tenants: dict[str, Tenant], topic: str) -> None:
    records = world.records(topic)
    assert {record["tenant"] for record in records if record["tenant"]} == set(TENANTS)
    for record in records:
        if record["tenant"]:
            assert SECRET[other(record["tenant"])] not in repr(record)


def test_no_row_of_a_tenant_has_the_others_text(world: World, tenants: dict[str, Tenant]) -> None:
    """All tables and views with a tenant, by their whole rows."""
    named = world.rows(
        "SELECT DISTINCT table FROM system.columns WHERE database = currentDatabase() AND name = 'tenant'"
    )
    tables = [table for (table,) in named]
    assert {"steps", "feedback", "trajectories", "step_contents"} <= set(tables)
    for table in tables:
        for tenant in TENANTS:
            query = (
                f"SELECT count() FROM {table} WHERE tenant = '{tenant}' AND position(toString(tuple(*)), '{{}}') > 0"
            )
            assert world.value(query.format(SECRET[other(tenant)])) == 0, table
    assert (
        world.value(f"SELECT count() FROM step_contents WHERE position(toString(tuple(*)), '{SECRET['first']}') > 0")
        > 0
    )


def test_feedback_on_the_others_trajectory_changes_nothing(world: World, tenants: dict[str, Tenant]) -> None:
    labels = [each for each in world.records("labeled-trajectories") if each["trajectory_id"] == ONLY_FIRST]
    assert {label["tenant"] for label in labels} == {"first"}
    assert SECRET["second"] not in repr(labels)
    assert labels[-1]["success"] is True


def test_the_learner_reads_each_tenants_attempts_in_its_own_groups(world: World, tenants: dict[str, Tenant]) -> None:
    labels = {(each["tenant"], each["trajectory_id"]): each for each in world.records("labeled-trajectories")}
    attempts = {name: attempt_of(label, (0, 0), Limits("demo", 200_000, 4096)) for name, label in labels.items()}
    for way in WAYS:
        pair = [attempts[tenant, way] for tenant in TENANTS]
        assert {attempt.group_id for attempt in pair} == {"group"}
        assert [attempt.tenant for attempt in pair] == list(TENANTS)


def test_another_tenants_response_does_not_exist(tenants: dict[str, Tenant]) -> None:
    body = {"model": "demo", "input": "repeat", "previous_response_id": tenants["first"].response}
    refused = tenants["second"]._http.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
    assert tenants["first"]._http.post("/v1/responses", json=body).status_code == 200


def test_one_trace_leads_from_a_call_to_its_label_in_the_tables(
    tenants: dict[str, Tenant], collector: TraceCollector
) -> None:
    wait_until(
        lambda: {name for name in TENANTS for call in calls(collector) if f'"{name}"' in call.text} == set(TENANTS)
    )
    for call in calls(collector):
        wait_until(partial(leads_to_the_tables, collector, call.trace_id))


def calls(collector: TraceCollector) -> list[CollectedSpan]:
    """Return the spans of the calls of the trajectories `chat` that the gateway has exported so far."""
    return [span for span in collector.spans if span.name == "call chat" and '"chat"' in span.text]


def leads_to_the_tables(collector: TraceCollector, trace_id: str) -> bool:
    """Return True if a chain of spans, each the child of the one before, leads from a call to the tables."""
    trace = collector.trace(trace_id)
    for span in trace.values():
        chain = [span]
        while chain[0].parent_id in trace:
            chain.insert(0, trace[chain[0].parent_id])
        if [(one.service, one.name) for one in chain] == WAY_OF_A_CALL:
            return True
    return False


def test_no_span_has_a_text(tenants: dict[str, Tenant], collector: TraceCollector) -> None:
    wait_until(lambda: bool(collector.spans))
    for tenant in tenants.values():
        assert not any(tenant.secret in span.text or PERSON in span.text for span in collector.spans)


def test_explain_names_the_tenants_own_trajectory(world: World, tenants: dict[str, Tenant]) -> None:
    for tenant in TENANTS:
        explanation = json.dumps(world.run_json("explain", "chat", "--tenant", tenant))
        assert SECRET[other(tenant)] not in explanation


def test_no_tenant_lost_a_step(world: World, tenants: dict[str, Tenant]) -> None:
    assert world.records("dead-letters") == []


def test_an_erasure_leaves_the_other_tenants_person(world: World, tenants: dict[str, Tenant]) -> None:
    """Last, since it changes what the tests before it read."""
    report = world.run_json("erase", "--subject", PERSON, "--tenant", "second")
    assert report["left"] == {}
    count = f"SELECT count() FROM steps FINAL WHERE user = '{PERSON}' AND tenant = "
    assert world.value(f"{count}'second'") == 0
    assert world.value(f"{count}'first'") >= len(WAYS)
    readable = [each for each in world.records("governed-steps") if each is not None and each["tenant"] == "first"]
    assert sum(SECRET["first"] in repr(record) for record in readable) >= len(WAYS)
