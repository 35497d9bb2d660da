"""Test the controller as real processes over a real log and store: what it decides, two at once, a proposal."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
from command_line import stepstream
from control_world import POLICY, World, put_out
from engine_models import constant_model
from inference_workers import VersionPublisher
from recorded_attempts import copies_similar_example
from scripted_chat import ScriptedChat
from service_process import ServiceProcess
from stack_fixtures import with_settings
from waiting import TIMEOUT_S, wait_until
from webhook_receiver import SECRET, Receiver

from stepstream.config import Settings
from stepstream.crypto.signatures import create_key
from stepstream.embedded.ports import free_block
from stepstream.embedded.stack import Stack
from stepstream.services.control.decide.decide import NO_STORE
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_approval
from stepstream.topics.ids import new_event_id, now_us


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    from stepstream.embedded.addresses import isolated

    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("control")))
    settings = with_settings(settings, store={"batch_s": 0.05})
    with Stack(settings, ["broker", "registry", "store", "store-writer"]) as stack:
        yield stack


@pytest.fixture
def world(stack: Stack, tmp_path: Path) -> Iterator[World]:
    with closing(Codec(stack.settings)) as codec:
        yield World(stack.settings, codec, tmp_path)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with closing(Receiver()) as receiver:
        yield receiver


def test_a_better_version_is_promoted_and_taken_back_when_it_turns_bad(world: World) -> None:
    world.apply_policy("good")
    with world.controller():
        put_out(world, "good")
        for _ in range(30):
            world.serve("good", 1, 0, "canary")
            world.serve("good", 0, 1)
        wait_until(lambda: ("promote", "2", "done") in world.actions("good"), lambda: f"{world.actions('good')}")
        world.serve("good", 0, 40)
        expected = [("canary", "2", "done"), ("promote", "2", "done"), ("rollback", "1", "done")]
        wait_until(lambda: world.actions("good") == expected, lambda: f"{world.actions('good')}")
    newest = world.rollouts("good")[-1]
    assert (newest["stable_version"], newest["canary_version"]) == (1, None)
    assert newest["author"] == "control plane"
    rollback = world.decisions("good")[-1]
    assert rollback["rule"] == "change_after_promotion"
    assert rollback["event_id"] in newest["reason"]


def test_of_two_controllers_one_acts_and_the_other_goes_on_when_it_is_killed(world: World) -> None:
    world.apply_policy("two")
    with world.controller("first") as first, world.controller("second") as second:
        put_out(world, "two")
        # The group elects either: its members are sorted by random ids.
        wait_until(lambda: sorted(map(acts, (first, second))) == [False, True])
        leader, other = (first, second) if acts(first) else (second, first)
        leader.kill()
        for _ in range(30):
            world.serve("two", 1, 0, "canary")
            world.serve("two", 0, 1)
        expected = [("canary", "2", "done"), ("promote", "2", "done")]
        wait_until(lambda: world.actions("two") == expected, lambda: f"{world.actions('two')}")
        assert acts(other)
    decided = [one["event_id"] for topic, one in world.records(DECISIONS) if one["model"] == "two"]
    done = [one["event_id"] for topic, one in world.records(DECISION_ACTS) if one["model"] == "two"]
    assert len(decided) == len(set(decided))
    assert len(done) == len(set(done)) == 2, "each once"
    assert [one["action"] for one in world.rollouts("two")] == ["promote", "canary", "promote"]


def test_an_outage_of_the_store_is_one_decision_to_hold_also_after_a_restart(world: World, stack: Stack) -> None:
    world.apply_policy("away")

    def reasons() -> list[str]:
        return [one["reason"] for _, one in world.records(DECISIONS) if one["model"] == "away"]

    first, second = world.controller("first"), world.controller("second")
    with ExitStack() as ends:
        ends.enter_context(first)
        world.publish("away", 1)
        world.serve("away", 24, 6)
        wait_until(lambda: reasons() != [], "it decides")
        stack.stop_process("store")
        try:
            wait_until(lambda: NO_STORE in reasons(), lambda: f"{reasons()}")
            first.kill()
            second.launch()
            ends.callback(second.stop)
            wait_until(lambda: second.log_text.count("nothing was decided") > 2, lambda: second.log_text)
        finally:
            stack.start_process("store")
        wait_until(lambda: reasons()[-1] != NO_STORE, lambda: f"{reasons()}")
        assert reasons().count(NO_STORE) == 1
        world.publish("away", 2, 1)
        wait_until(lambda: world.actions("away") == [("canary", "2", "done")], lambda: f"{world.actions('away')}")


def test_people_are_notified_and_what_they_approve_is_done_once(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    hook = {"webhook_url": receiver.url, "webhook_secret": SECRET, "webhook_timeout_s": 5.0}
    world.settings = with_settings(world.settings, control=hook)
    world.apply_policy("asked", POLICY.replace("watch_s = 0.001", "watch_s = 3600\napprovals = 1"))
    receiver.statuses = [500]  # it is sent again
    with world.controller():
        world.publish("asked", 1)
        world.serve("asked", 24, 6)
        wait_until(lambda: [one["stable_version"] for one in world.rollouts("asked")] == [1], "version 1 is fixed")
        world.publish("asked", 2, 1)
        wait_until(lambda: world.actions("asked") == [("canary", "2", "awaiting")], lambda: f"{world.actions('asked')}")
        wait_until(lambda: len(messages(receiver)) == 2)
    # A controller that starts to act sends it again, with the id that the receiver knows.
    with world.controller("second"):
        wait_until(lambda: len(messages(receiver)) == 3)
        [decision] = world.decisions("asked")
        assert stepstream(world.settings, "decisions", "approve", decision["event_id"]).status == 0
        wait_until(lambda: world.actions("asked") == [("canary", "2", "done")], lambda: f"{world.actions('asked')}")
        wait_until(lambda: len(messages(receiver)) == 4)
        again = stepstream(world.settings, "decisions", "approve", decision["event_id"])
        assert (again.status, "it is done already" in again.stderr) == (1, True)
    assert world.rollouts("asked")[-1]["canary_version"] == 2
    first, *same, last = messages(receiver)
    assert [one[0] for one in same] == [first[0], first[0]] != [last[0]] * 2
    assert [one[1] for one in (first, last)] == ["decision.awaiting", "decision.done"]


def test_a_forged_approval_is_refused_in_the_log_and_a_signed_one_is_done(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    public = create_key(tmp_path / "ada.pem")
    world.settings = with_settings(world.settings, control={"trusted_keys": [f"ada:admin:{public}"]})
    world.apply_policy("signed", POLICY.replace("watch_s = 0.001", "watch_s = 3600\napprovals = 1"))
    with world.controller():
        world.publish("signed", 1)
        world.serve("signed", 24, 6)
        wait_until(lambda: [one["stable_version"] for one in world.rollouts("signed")] == [1], "version 1 is fixed")
        world.publish("signed", 2, 1)
        wait_until(
            lambda: world.actions("signed") == [("canary", "2", "awaiting")], lambda: f"{world.actions('signed')}"
        )
        [decision] = world.decisions("signed")
        identity = decision["event_id"]
        forged = new_approval(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            decision_id=identity,
            verdict="approved",
            author="ada",
            role="admin",
        )
        world.write(APPROVALS, identity, forged)
        refused = {"event_id": forged["event_id"], "refused": "it is not signed: set control.signing_key"}
        wait_until(lambda: any(refused.items() <= one.items() for one in world.read().answers_to(identity)))
        assert world.actions("signed") == [("canary", "2", "awaiting")]
        settings = with_settings(world.settings, control={"signing_key": str(tmp_path / "ada.pem")})
        assert stepstream(settings, "decisions", "approve", identity).status == 0
        wait_until(lambda: world.actions("signed") == [("canary", "2", "done")], lambda: f"{world.actions('signed')}")


def test_people_search_a_harness_version_by_hand(world: World) -> None:
    world.serve_codes("by-hand", "asker", 120)
    propose = ("harness", "propose", "--agent", "asker", "--json")
    with ScriptedChat(lambda _request: "no idea") as gateway:
        settings = with_settings(world.settings, optimise={"gateway_url": gateway.url})
        wait_until(lambda: json.loads(stepstream(settings, *propose).stdout)["trajectories"] == 120)
        nothing = stepstream(settings, *propose)
        assert (nothing.status, json.loads(nothing.stdout)["reason"]) == (1, "examples: no gain is confirmed")
        gateway.rule = copies_similar_example
        found = stepstream(settings, *propose)
    assert found.status == 0, found.stderr
    [proposed] = world.harnesses("asker")
    assert (proposed["version"], proposed["state"]) == (json.loads(found.stdout)["version"], "proposed")
    gateway_is_gone = stepstream(with_settings(settings, optimise={"timeout_s": 0.1}), *propose)
    assert (gateway_is_gone.status, f"{gateway.url}/v1 does not answer" in gateway_is_gone.stderr) == (1, True)


def test_a_policy_for_an_unknown_agent_is_refused_with_its_line(world: World, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('tenant = "default"\nagents = ["nobody"]\n')
    words = ("policy", "control", "apply", str(file), "--name", "nobody")
    refused = stepstream(world.settings, *words)
    assert (refused.status, "line 2: agents: 'nobody' matches none of tenant default" in refused.stderr) == (1, True)
    assert stepstream(world.settings, *words, "--unseen").status == 0


def acts(controller: ServiceProcess) -> bool:
    """Return True if a controller is the one that acts."""
    page = httpx.get(f"http://127.0.0.1:{controller.settings.metrics.port}/metrics", timeout=TIMEOUT_S).text
    return "stepstream_control_leader 1.0" in page


def messages(receiver: Receiver) -> list[tuple[str, str]]:
    """Return id and type of each received message."""
    return [(headers["webhook-id"], json.loads(body)["type"]) for headers, body in list(receiver.requests)]


def test_a_fleet_that_fails_by_format_gets_a_proposal_from_its_own_successes(world: World) -> None:
    """The model answers rightly only if the nearest past success is in its prompt."""
    world.apply_policy("codes")
    world.serve_codes("codes", "coder", 120)
    with ScriptedChat(copies_similar_example) as gateway:
        world.settings = with_settings(world.settings, optimise={"gateway_url": gateway.url})
        with world.controller():
            wait_until(
                lambda: [one[0] for one in world.actions("codes")] == ["propose", "canary"],
                lambda: f"{world.actions('codes')}",
            )
    propose, canary = world.decisions("codes")
    assert (propose["rule"], canary["rule"]) == ("format_failures", "headroom")
    acts = world.read().acts_of(propose["event_id"])
    assert list(dict.fromkeys(one["state"] for one in acts)) == ["started", "done"]
    spent = [one["calls"] for one in acts if one["state"] == "started"]
    assert spent == sorted(spent)
    assert spent[-1] <= world.settings.optimise.calls  # 0 if the search ended before the controller looked at it
    proposed, tried = world.harnesses("coder")
    assert (proposed["state"], tried["state"], tried["share"]) == ("proposed", "canary", 0.5)
    assert proposed["version"] == tried["version"] == canary["target"]
    assert (proposed["proposer"], proposed["author"], proposed["parents"]) == ("optimise/examples", "control plane", [])
    assert propose["event_id"] in proposed["reason"]
    gain = proposed["headroom"]
    assert gain is not None
    assert gain["low"] is not None
    assert gain["low"] > 0.5
    assert proposed["examples"]
    assert all(one["messages"][1]["content"].startswith("code-") for one in proposed["examples"])
    assert {headers["x-stepstream-agent"] for headers in gateway.headers} == {"shadow:coder"}
    assert {headers["x-stepstream-consent"] for headers in gateway.headers} == {"none"}


def test_new_weights_answer_recorded_prompts_at_a_real_worker_before_they_serve(world: World, tmp_path: Path) -> None:
    """Versions 1 and 3 answer as recorded; version 2 does not, and no trajectory is ever assigned to it."""
    port, model = free_block(1), "shadowed"
    rules = tmp_path / "verify.toml"
    rules.write_text('[[verification]]\nname = "outcome"\nverifier = "regex"\noptions = { pattern = "^a+$" }\n')
    inference = {"model": model, "port": port, "worker_id": model, "status_every_s": 1.0}
    world.settings = with_settings(world.settings, verify={"file": str(rules)}, inference=inference)
    world.apply_policy(model, POLICY.replace("[canary]\n", '[canary]\nshadow = "required"\n'))
    worker = ServiceProcess("stepstream.services.inference", world.settings, lambda: True, tmp_path / "worker.log")

    def actions() -> list[tuple[str, str, str]]:
        return world.actions(model)

    with ExitStack() as ends:
        publisher = ends.enter_context(closing(VersionPublisher(world.settings, tmp_path, model)))

        def publish(version: int, character: str) -> None:
            record = publisher.describe(version, constant_model(tmp_path / f"v{version}", character))
            publisher.publish({**record, "parent_version": None if version == 1 else 1})

        worker.launch()
        ends.callback(worker.kill)
        ends.enter_context(world.controller())
        publish(1, "a")
        world.serve_texts(model, "a", "aaaaaaaa", 30)
        wait_until(lambda: [one["stable_version"] for one in world.rollouts(model)] == [1], "version 1 is fixed")
        publish(2, "b")
        refused = [("canary", "2", "done"), ("rollback", "1", "done")]
        wait_until(lambda: actions() == refused, lambda: f"{actions()}\n{worker.log_text}")
        publish(3, "a")
        tried = [*refused, ("canary", "3", "done"), ("widen", "3", "done")]
        wait_until(lambda: actions() == tried, lambda: f"{actions()}\n{worker.log_text}")
    shares = {one["canary_version"]: one["canary_share"] for one in world.rollouts(model)}
    assert shares == {None: 0.0, 2: 0.0, 3: 0.5}
    _, stopped, _, widened = world.decisions(model)
    for decision, difference, n in ((stopped, -1.0, 30), (widened, 0.0, 30)):
        [figure] = [one for one in decision["evidence"] if one["name"] == "shadow_difference"]
        assert (figure["value"], figure["n"]) == (difference, n)
