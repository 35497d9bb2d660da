"""`python -m stepstream.learner`: the learner as a process; under torchrun, as one of the ranks that train together."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.learner import learner
from stepstream.learner.model.distributed import joined
from stepstream.learner.training.rank_zero import dismiss, follow


def main(settings: Settings, stop: Stop) -> None:
    """Trains until `stop`, which rank 0 alone heeds: it finishes what the ranks do together, and then tells them."""
    with joined() as ranks:
        if ranks.rank:
            follow()
        else:
            learner.main(settings, stop)
            dismiss()


if __name__ == "__main__":
    run("learner", main)
