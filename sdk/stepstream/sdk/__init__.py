"""Records what an agent does from inside its own Python program: trajectories, steps, tools, rewards, sub-agents.

    from stepstream import sdk

    with sdk.trajectory(task_id="invoice-7", agent="clerk") as t:
        with t.step(messages=messages, model="gpt-5") as s:
            s.response(answer)
        t.reward("outcome", 1.0)

Nothing here fails or delays the agent: what cannot be recorded is logged and counted. See docs/sdk.md.
"""

from stepstream.sdk.api import current, current_step, feedback, sub_agent, trajectory
from stepstream.sdk.checkpoints import Checkpoints, subscribe_checkpoints
from stepstream.sdk.decorators import reward, step
from stepstream.sdk.recorder import MemorySink, close, configure, flush, recorder
from stepstream.sdk.step import Step
from stepstream.sdk.tools import tool, tool_use
from stepstream.sdk.trajectory import Trajectory

__all__ = [
    "Checkpoints",
    "MemorySink",
    "Step",
    "Trajectory",
    "close",
    "configure",
    "current",
    "current_step",
    "feedback",
    "flush",
    "recorder",
    "reward",
    "step",
    "sub_agent",
    "subscribe_checkpoints",
    "tool",
    "tool_use",
    "trajectory",
]
