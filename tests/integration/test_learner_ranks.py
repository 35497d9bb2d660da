"""Test the learner as two ranks under torchrun: one is killed at a random instant, then one has a full disk."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from learner_lab import PER_VERSION, SIZE, LearnerLab
from waiting import wait_until

from stepstream.cli.models import rebuild
from stepstream.config import Settings
from stepstream.embedded.ports import free_block
from stepstream.learner.publish import publish_root

VERSIONS = 6


@pytest.fixture
def lab(registry_settings: Settings, tmp_path: Path) -> Iterator[LearnerLab]:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_block(1)))
    made = LearnerLab(registry_settings, tmp_path, under=torchrun)
    yield made
    made.close()


def rank(lab: LearnerLab, number: int) -> psutil.Process:
    """Return the process of a rank."""
    (process,) = (
        each
        for each in lab.learner.children()
        if "stepstream.learner" in each.cmdline() and each.environ().get("RANK") == str(number)
    )
    return process


@contextmanager
def full_disk(process: psutil.Process) -> Iterator[None]:
    """Let the writes of versions by a process fail; its log is smaller than the limit."""
    most = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (100_000, most[1]))
    yield
    process.rlimit(psutil.RLIMIT_FSIZE, most)


def test_a_rank_killed_at_any_instant_loses_and_repeats_nothing(lab: LearnerLab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    names = [f"g{number}" for number in range(VERSIONS * PER_VERSION)]
    lab.produce(*names[: 3 * PER_VERSION])
    lab.learner.start()
    lab.wait_for(1)
    lab.produce(*names[3 * PER_VERSION : -PER_VERSION])
    victim = rank(lab, random.randrange(2))
    with suppress(psutil.NoSuchProcess):
        victim.kill()
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status != 0
    survived = lab.newest()

    lab.produce(*names[: 2 * PER_VERSION])  # delivered again
    lab.learner.start()
    lab.wait_for(VERSIONS - 1)
    with full_disk(rank(lab, 1)):
        lab.produce(*names[-PER_VERSION:])
        wait_until(lambda: lab.series()["stepstream_learner_publication_faults_total"] >= 2)
        assert f"{lab.model}@{VERSIONS} cannot be written" in lab.learner.log_text
        assert "rank 1 cannot write its rows of a version" in lab.learner.log_text
        assert lab.newest() == VERSIONS - 1
    lab.wait_for(VERSIONS)
    lab.learner.stop()
    assert lab.learner.log_text.count("INFO learner stepstream.core.process: stopped") == 2

    trained = lab.trained(VERSIONS)
    records = lab.records("labeled-trajectories")
    identities = [records[place]["trajectory_id"] for place in trained]
    assert len(set(identities)) == len(identities)
    assert set(identities) == {f"{name}/{n}" for name in names for n in range(SIZE)}
    for version in (1, survived, VERSIONS):  # rebuilt by one process
        answer = lab.cli(rebuild, f"{lab.model}@{version}")
        assert answer.exit_code == 0, answer.output
