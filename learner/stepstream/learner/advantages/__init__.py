"""Assign credit to steps: one advantage rule per file; docs/credit.md has the table.

A rule is a small value object with its settings. Called with groups of attempts (`Trajectory`, `Step`) it returns an
advantage for every step, which `expand` copies to the trained tokens. Pure: no torch, no I/O.
"""

from stepstream.learner.advantages.arithmetic import has_variance
from stepstream.learner.advantages.base import (
    Aggregation,
    Credit,
    Group,
    MissingInput,
    Need,
    Result,
    Rule,
    Step,
    Trajectory,
)
from stepstream.learner.advantages.dr_grpo import DrGrpo
from stepstream.learner.advantages.expand import expand, expand_targets
from stepstream.learner.advantages.gigpo import GiGpo
from stepstream.learner.advantages.grpo import Grpo
from stepstream.learner.advantages.hcapo import Hcapo, HindsightCritic, hindsight_of
from stepstream.learner.advantages.hgpo import Hgpo
from stepstream.learner.advantages.ppo_gae import PpoGae
from stepstream.learner.advantages.reinforce_pp import ReinforcePlusPlus
from stepstream.learner.advantages.rloo import Rloo
from stepstream.learner.advantages.salt import Salt
from stepstream.learner.advantages.shadow import Shadow
from stepstream.learner.advantages.step_gae import GroupStepGae, StepGae
from stepstream.learner.advantages.stratified import Stratified
from stepstream.learner.advantages.tree_grpo import TreeGrpo
from stepstream.learner.advantages.vtrace import VTrace

__all__ = [
    "Aggregation",
    "Credit",
    "DrGrpo",
    "GiGpo",
    "Group",
    "GroupStepGae",
    "Grpo",
    "Hcapo",
    "Hgpo",
    "HindsightCritic",
    "MissingInput",
    "Need",
    "PpoGae",
    "ReinforcePlusPlus",
    "Result",
    "Rloo",
    "Rule",
    "Salt",
    "Shadow",
    "Step",
    "StepGae",
    "Stratified",
    "Trajectory",
    "TreeGrpo",
    "VTrace",
    "expand",
    "expand_targets",
    "has_variance",
    "hindsight_of",
]
