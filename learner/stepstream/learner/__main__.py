"""`python -m stepstream.learner`: the learner as a process."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from stepstream.learner.learner import main
from stepstream.topics.process import run

if __name__ == "__main__":
    run("learner", main)
