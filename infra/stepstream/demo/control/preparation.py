"""Prepare a run: names and keys of its own, the policy of the control plane, and a learner that waits for it."""

import time
from contextlib import closing
from importlib.resources import files

import orjson

from stepstream.config import Settings
from stepstream.crypto.signatures import create_key, load_key, public_key
from stepstream.demo.configuration import demo_settings, fresh_run
from stepstream.embedded.addresses import resolve_addresses
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.topics.catalogue import CONTROL_POLICIES, TRAINING_CONTROL
from stepstream.topics.codec import Codec
from stepstream.topics.events import new_control_policy, new_training_control
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer

POLICY_FILE = "policy.toml"
POLICY_NAME = "demo-control"
TENANT = "default"
_DEADLINE_S = 30.0


def run_settings() -> Settings:
    """Return the settings of one run, whose agent and model have a name that no earlier run had.

    Raises:
        SettingsError: a setting is invalid.
    """
    settings = fresh_run(resolve_addresses(demo_settings("demo-control")))
    name = time.strftime("desk-%m%d-%H%M%S", time.gmtime())
    key = settings.paths.data / "secrets" / "demo-control.key"
    key.parent.mkdir(parents=True, exist_ok=True)
    trusted = public_key(load_key(key)) if key.exists() else create_key(key)
    return settings.model_copy(
        update={
            "learner": settings.learner.model_copy(update={"model": name, "signing_key": key}),
            "inference": settings.inference.model_copy(update={"model": name, "trusted_keys": [trusted]}),
            "fleet": settings.fleet.model_copy(update={"model": name, "agent": name}),
        }
    )


def policy_document(agent: str) -> str:
    """Return the policy file of the demo, for one agent."""
    text = files("stepstream.demo.control").joinpath(POLICY_FILE).read_text("utf-8")
    return f"agents = {orjson.dumps([agent]).decode()}\n{text}"


def prepare_log(settings: Settings) -> None:
    """Put the policy in force, and let the learner wait.

    Raises:
        DeliveryFailed: Kafka did not acknowledge a record within 30 seconds.
    """
    document, model = policy_document(settings.fleet.agent), settings.learner.model
    policy = new_control_policy(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        tenant=TENANT,
        name=POLICY_NAME,
        version=now_us() // 1_000_000 & 0x7FFFFFFF,
        document=document,
        hash=ControlPolicy.parse(document).hash,
        author="demo-control",
    )
    paused = new_training_control(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        tenant=TENANT,
        model=model,
        paused=True,
        reason="nobody has asked for learning yet",
    )
    with closing(Codec(settings)) as codec:
        producer = EventProducer(settings.kafka, codec, "demo-control", linger_ms=0)
        producer.send(CONTROL_POLICIES, orjson.dumps([TENANT, POLICY_NAME]).decode(), policy)
        producer.send(TRAINING_CONTROL, orjson.dumps([TENANT, model]).decode(), paused)
        producer.flush(_DEADLINE_S)
