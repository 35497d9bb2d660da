"""Evaluate the policy that is served now: attempt held-out tasks once each."""

import asyncio
from itertools import islice

from prometheus_client import CollectorRegistry

from stepstream.config import Settings
from stepstream.services.fleet.agent import Agent, Assignment
from stepstream.services.fleet.environment import load_environment
from stepstream.services.fleet.gateway_client import GatewayClient
from stepstream.services.fleet.ledger import Attempt, Ledger, ledger_path
from stepstream.services.fleet.metrics import Metrics


async def evaluate(settings: Settings, n: int, name: str, temperature: float | None = None) -> list[Attempt]:
    """Attempt the first `n` held-out tasks of `fleet.seed`, always the same ones, once each.

    Args:
        settings: address of the gateway, and the agents' environment.
        n: number of tasks.
        name: of this evaluation; it writes the ledger `evaluation-NAME.jsonl` beside the fleet's.
        temperature: of sampling; None: the fleet's.

    Returns:
        One attempt a task, in order. Those with status `lost` failed outside the agent and have no outcome.
    """
    environment = load_environment(settings.fleet.environment)
    tasks = islice(environment.tasks(settings.fleet.seed, "eval"), n)
    ledger = Ledger(ledger_path(settings).with_name(f"evaluation-{name}.jsonl"))
    client = GatewayClient(settings.fleet)
    agent = Agent(client, settings.fleet, environment, Metrics(CollectorRegistry()), asyncio.Event(), temperature)
    slots = asyncio.Semaphore(settings.fleet.concurrency)

    async def attempt(task_id: str) -> Attempt:
        async with slots:
            attempt = await agent.attempt(Assignment(task_id, "eval"))
        ledger.append(attempt)
        return attempt

    attempts = [asyncio.create_task(attempt(task_id)) for task_id in tasks]
    try:
        return list(await asyncio.gather(*attempts))
    finally:
        for each in attempts:
            each.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)  # a cancelled attempt still writes its entry
        await client.close()
        ledger.close()
