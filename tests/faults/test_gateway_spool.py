"""Check the gateway under lost brokers and registries, full spools and kill -9: calls succeed, losses are logged."""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from gateway_fixtures import codec, gateway_process, gateway_settings, read_topic
from scripted_upstream import ScriptedUpstream
from service_process import ServiceProcess, broker, registry
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.topics import admin
from stepstream.topics.consumer import EventConsumer

pytestmark = pytest.mark.faults


@pytest.fixture
def worker() -> Iterator[ScriptedUpstream]:
    worker = ScriptedUpstream()
    worker.start()
    yield worker
    worker.die()


@asynccontextmanager
async def agent(settings: Settings) -> AsyncIterator[Any]:
    url = f"http://127.0.0.1:{settings.gateway.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:

        async def call(trajectory: str, text: str, tenant: str = "default", **more: Any) -> Any:
            return await client.chat.completions.create(
                model="demo",
                timeout=TIMEOUT_S,
                messages=[{"role": "user", "content": text}],
                extra_headers={"x-stepstream-trajectory": trajectory, "x-stepstream-tenant": tenant},
                **more,
            )

        yield call


@contextmanager
def paused(*services: ServiceProcess) -> Iterator[None]:
    """Pause the services: they accept connections and do not answer."""
    for service in services:
        service.pause()
    try:
        yield
    finally:
        for service in services:
            service.resume()


def steps(settings: Settings, trajectory: str, count: int) -> list[Any]:
    """Wait for `count` distinct steps of a trajectory; return them by first arrival."""
    by_id: dict[str, Any] = {}

    def has_all() -> bool:
        for step in read_topic(settings, "steps", trajectory, 0):
            by_id.setdefault(step["event_id"], step)
        return len(by_id) >= count

    wait_until(has_all)
    return list(by_id.values())


TENANTS = ("acme", "other")


def check_steps(arrived: list[Any], count: int) -> None:
    """Assert that each tenant has its own steps 0 to `count` - 1 of the trajectory whose name both use."""
    for tenant in TENANTS:
        own = [step for step in arrived if step["tenant"] == tenant]
        assert [step["step_index"] for step in own] == list(range(count))
        assert [step["messages"][0]["content"] for step in own] == [f"{tenant} {number}" for number in range(count)]
    assert len(arrived) == len(TENANTS) * count


async def test_calls_succeed_without_kafka_and_kill_9_loses_nothing_of_two_tenants(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    worker: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    """Two tenants use one trajectory name: the spool, its replay and the counts after a kill hold them apart."""
    settings = with_topics_and_tables(isolated(base_settings, tmp_path))
    registry_process = registry(settings, tmp_path / "registry.log")
    settings = gateway_settings(registry_process.settings, worker)
    gateway = gateway_process(settings, tmp_path / "gateway.log")
    trajectory = str(uuid.uuid4())
    with gateway:  # neither Kafka nor the registry has started yet
        async with agent(settings) as call_of:

            async def call(*numbers: int) -> None:
                for number in numbers:
                    for tenant in TENANTS:
                        await call_of(trajectory, f"{tenant} {number}", tenant)

            async def arrive(count: int) -> None:
                check_steps(await asyncio.to_thread(steps, settings, trajectory, len(TENANTS) * count), count)

            await call(0, 1, 2, 3)
            gateway.kill()
            await asyncio.to_thread(gateway.start)
            await call(4)
            with broker(settings, tmp_path / "broker.log") as kafka, registry_process:
                await asyncio.to_thread(admin.apply, settings)
                await arrive(5)
                kafka.kill()
                await call(5, 6, 7)
                gateway.kill()
                await asyncio.to_thread(gateway.start)
                await call(8)
                assert gateway.stop() == 0  # Kafka is still down: unsent events stay on disk
                assert "events remain in the spool" in gateway.log_text
                await asyncio.to_thread(kafka.start)
                with paused(kafka, registry_process):  # both accept connections and do not answer
                    await asyncio.to_thread(gateway.start)
                    await call(9, 10)
                await arrive(11)
                with paused(kafka, registry_process):
                    await call(11, 12, 13)
                await arrive(14)
                again = await asyncio.to_thread(read_topic, settings, "steps", trajectory, 14 * len(TENANTS))
                once = Counter((step["tenant"], step["step_index"]) for step in again if step["step_index"] > 8)
                assert once == Counter((tenant, number) for tenant in TENANTS for number in range(9, 14))
    assert not list((tmp_path / "spool").rglob("*.spool"))


async def test_kill_9_during_a_stream_loses_only_the_event_in_flight(
    registry_settings: Settings, worker: ScriptedUpstream, tmp_path: Path
) -> None:
    settings = gateway_settings(registry_settings, worker)
    gateway = gateway_process(settings, tmp_path / "gateway.log")
    trajectory = str(uuid.uuid4())
    with gateway:
        async with agent(settings) as call:
            await call(trajectory, "0")
            worker.hold()
            before = len(worker.requests)
            stream = asyncio.create_task(call(trajectory, "1", stream=True))
            await asyncio.to_thread(wait_until, lambda: len(worker.requests) > before)
            gateway.kill()
            with pytest.raises(openai.APIError):
                await stream
            worker.release()
            await asyncio.to_thread(gateway.start)
            await call(trajectory, "1")  # repeated
        arrived = await asyncio.to_thread(steps, settings, trajectory, 2)
    assert [step["step_index"] for step in arrived] == [0, 2]


async def test_a_full_spool_drops_the_oldest_events_with_a_log_line(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    worker: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path))
    registry_process = registry(settings, tmp_path / "registry.log")
    settings = gateway_settings(registry_process.settings, worker, spool_mb=1)
    gateway = gateway_process(settings, tmp_path / "gateway.log")
    trajectories = [str(uuid.uuid4()) for _ in range(60)]
    with gateway:
        async with agent(settings) as call:
            for trajectory in trajectories:
                await call(trajectory, "x" * 30_000)
        assert "dropped" in gateway.log_text
        ready = httpx.get(f"http://127.0.0.1:{settings.gateway.port}/ready")
        assert ready.status_code == 503
        assert "full: restore Kafka" in ready.json()["faults"][0]
        assert "no broker answers" in ready.json()["kafka"]
        with broker(settings, tmp_path / "broker.log"), registry_process:
            await asyncio.to_thread(admin.apply, settings)
            await asyncio.to_thread(steps, settings, trajectories[-1], 1)
            with EventConsumer(settings.kafka, codec(settings.schema_registry.url)) as consumer:
                consumer.follow(["steps"])
                stored = set()
                while not consumer.is_caught_up():
                    stored |= {event.key for event in consumer.poll(1000, 0.1)}
            gateway.stop()
    marks = "".join("+" if trajectory in stored else "-" for trajectory in trajectories)
    # The oldest events on disk are dropped; a few events before them were already in the sending thread.
    assert re.fullmatch(r"\+{0,5}-+\++", marks), marks
    assert marks.count("+") > 8  # of about 90 kB each


async def test_a_disk_that_cannot_be_written_fails_no_call(
    registry_settings: Settings, worker: ScriptedUpstream, tmp_path: Path
) -> None:
    (tmp_path / "spool").write_text("not a folder")
    settings = gateway_settings(registry_settings, worker, spool=tmp_path / "spool")
    gateway: ServiceProcess = gateway_process(settings, tmp_path / "gateway.log")
    trajectory = str(uuid.uuid4())
    with gateway:
        async with agent(settings) as call:
            for number in range(3):
                await call(trajectory, str(number))
        arrived = await asyncio.to_thread(steps, settings, trajectory, 3)
        assert [step["step_index"] for step in arrived] == [0, 1, 2]
        assert "cannot write the spool" in gateway.log_text
