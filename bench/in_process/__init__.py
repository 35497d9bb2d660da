"""The loop without its wires, for benches that count samples or a virtual clock's seconds.

The real model, the engine's real batch, the real environments, the learner's real reading of labels, buffer, advantage
rules, losses and optimizer; what is left out is what carries events from one to the other.
"""

from in_process.conversation import Conversation, Renderer
from in_process.generating import evaluate, play
from in_process.learning import Policy, base_model

__all__ = ["Conversation", "Policy", "Renderer", "base_model", "evaluate", "play"]
