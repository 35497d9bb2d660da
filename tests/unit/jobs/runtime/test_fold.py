"""The catalogue, from which access rights are generated, lets each job read its topics."""

import pytest

from stepstream.jobs.clickhouse.rows import TOPICS as STORED
from stepstream.jobs.govern import Govern
from stepstream.jobs.inspect import Inspect
from stepstream.jobs.judge import Judge
from stepstream.jobs.label import Label
from stepstream.jobs.measure import Measure
from stepstream.jobs.runtime.fold import FoldJob
from stepstream.jobs.verify import Verify
from stepstream.topics.catalogue import TOPICS


@pytest.mark.parametrize("job", [Govern, Inspect, Judge, Label, Measure, Verify], ids=lambda job: job.name)
def test_a_job_may_read_its_inputs_and_the_topic_that_restores_its_state(job: type[FoldJob]) -> None:
    topics = {*job.inputs, *([job.restored_topic] if job.restored_topic else [])}
    assert [topic for topic in topics if job.name not in TOPICS[topic].readers] == []


def test_the_sink_may_read_the_topics_that_it_stores() -> None:
    assert [topic for topic in STORED if "store" not in TOPICS[topic].readers] == []
