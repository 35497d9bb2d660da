"""Run the learner as a process (`python -m stepstream.learner`); under torchrun, as one of several ranks."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.learner import learner
from stepstream.learner.model.distributed import is_exact, join_ranks
from stepstream.learner.training.rank_zero import end_followers, follow


def main(settings: Settings, stop: Stop) -> None:
    """Train until `stop`. Only rank 0 reacts to it: it finishes the current work of all ranks, then ends them."""
    with join_ranks(is_exact(settings.learner)) as ranks:
        if ranks.rank:
            follow()
        else:
            learner.main(settings, stop)
            end_followers()


if __name__ == "__main__":
    run("learner", main)
