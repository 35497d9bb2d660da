"""The fleet of agents, and when a run of the loop has shown enough."""

from pathlib import Path

from pydantic import Field

from stepstream.config.sections.base import HttpAddress, Section


class Fleet(Section):
    """The fleet of agents."""

    gateway_url: HttpAddress = Field("http://127.0.0.1:8080", description="Base address of the gateway.")
    environment: str = Field(
        "stepstream.services.fleet.lookup:Lookup", description="Environment class, as module:name."
    )
    agent: str = Field("lookup-agent", description="Agent name in the events.")
    model: str = Field("demo", description="Model that the agents call.")
    concurrency: int = Field(64, ge=1, description="Trajectories in flight at once.")
    group_size: int = Field(8, ge=1, description="Attempts at each training task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    max_tokens: int = Field(24, ge=1, description="Most tokens of one response.")
    seed: int = Field(0, description="Seed from which tasks are drawn.")
    max_trajectories: int = Field(0, ge=0, description="Stop after this many trajectories; 0: go on until told.")
    max_ahead: int = Field(
        1,
        ge=-1,
        description="Versions of work that may be under way beyond the one that the learner collects; 0: agents wait "
        "while it trains (synchronous); -1: no limit.",
    )
    curriculum_spacing: int = Field(
        1,
        ge=1,
        le=1024,
        description="A task whose group taught the learner nothing (all its rewards equal) is attempted every second "
        "time it is drawn, after another such group every fourth, up to every so-many-th; 1: every time.",
    )
    gateway_deadline_s: float = Field(
        60.0, gt=0, description="Seconds for which an unreachable gateway is tried again before an attempt is given up."
    )
    shutdown_s: float = Field(
        2.0, ge=0, description="Seconds to finish trajectories when told to stop; the others are abandoned."
    )
    ledger: Path | None = Field(
        None, description="File in which the agents say what they sent; default: DATA/fleet/ledger.jsonl."
    )


class Demo(Section):
    """When a run of the loop has shown what it should, and what its base model is made of."""

    target: float = Field(0.85, gt=0, lt=1, description="Held-out success at which the loop has done its work.")
    margin: float = Field(0.03, ge=0, description="How far training success must pass the target before it is tested.")
    held_out: int = Field(256, ge=200, description="Held-out tasks of each evaluation.")
    deadline_s: float = Field(240.0, gt=0, description="Seconds that the loop may take to reach the target.")
    window: int = Field(512, ge=1, description="Newest training trajectories whose success is watched.")
    drain_s: float = Field(60.0, gt=0, description="Seconds allowed for everything sent to arrive in the tables.")
