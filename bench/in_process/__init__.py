"""Run the loop in one process, for benches that count samples or a virtual clock's seconds.

Model, engine batch, environments, and the learner's label reader, buffer, advantage rules, losses and optimizer are
real. Only the transport of events between them is left out.
"""

from in_process.conversation import Conversation, Renderer
from in_process.generating import evaluate, play
from in_process.learning import Policy, base_model

__all__ = ["Conversation", "Policy", "Renderer", "base_model", "evaluate", "play"]
