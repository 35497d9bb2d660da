"""Record an agent from inside its Python program: trajectories, steps, tools, rewards and sub-agents.

    from stepstream import sdk

    with sdk.trajectory(task_id="invoice-7", agent="clerk") as t:
        with t.step(messages=messages, model="gpt-5") as s:
            s.response(answer)
        t.reward("outcome", 1.0)

No call raises or blocks: failures are logged and counted. See docs/sdk.md.
"""

from stepstream.sdk.api import current, feedback, resume, sub_agent, trajectory
from stepstream.sdk.checkpoints import Checkpoints, subscribe_checkpoints
from stepstream.sdk.clients.instrument import instrument, uninstrument
from stepstream.sdk.decorators import reward, step
from stepstream.sdk.handle import TrajectoryHandle
from stepstream.sdk.model_updates import ModelSubscription, subscribe_models
from stepstream.sdk.recorder import MemorySink, close, configure, flush, recorder
from stepstream.sdk.step import Step
from stepstream.sdk.tool_versions import tool_versions
from stepstream.sdk.tools import tool, tool_use
from stepstream.sdk.trajectory import Trajectory, current_step
from stepstream.versions.updates import ModelUpdate

__all__ = [
    "Checkpoints",
    "MemorySink",
    "ModelSubscription",
    "ModelUpdate",
    "Step",
    "Trajectory",
    "TrajectoryHandle",
    "close",
    "configure",
    "current",
    "current_step",
    "feedback",
    "flush",
    "instrument",
    "recorder",
    "resume",
    "reward",
    "step",
    "sub_agent",
    "subscribe_checkpoints",
    "subscribe_models",
    "tool",
    "tool_use",
    "tool_versions",
    "trajectory",
    "uninstrument",
]
