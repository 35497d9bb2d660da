"""Answer the page Pipeline: lag of the jobs, dead letters and their redrive, governance, the local spool."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException

from stepstream.jobs.dead_letters.letters import LetterFilter
from stepstream.jobs.dead_letters.redrive import read_letters, redrive
from stepstream.services.console.api.sql import between, ms
from stepstream.services.console.endpoints import TENANT, Answer, BadRequest, Call, Done, acts, reads
from stepstream.services.console.event_log import LogUnavailable
from stepstream.services.console.lag import lag_of_jobs
from stepstream.topics.codec import RegistryUnavailable
from stepstream.topics.producer import DeliveryFailed

MOST_LETTERS = 100
"""Dead letters that the page lists, and that one action sends again."""

_COUNTS = f"""
SELECT job, topic, error, count() AS records, {ms("max(d.occurred_at)")} AS at, argMax(reason, d.occurred_at) AS reason
FROM dead_letters AS d FINAL WHERE {between("d.occurred_at")}
GROUP BY job, topic, error ORDER BY records DESC LIMIT 100
"""
_LETTERS = f"""
SELECT event_id, {ms("occurred_at")} AS at, job, topic, partition, offset, error, reason, value_bytes
FROM dead_letters FINAL
WHERE {between("occurred_at")} AND ({{error:String}} = '' OR error = {{error:String}})
    AND ({{topic:String}} = '' OR topic = {{topic:String}})
ORDER BY occurred_at DESC, event_id LIMIT {MOST_LETTERS}
"""
_GOVERNANCE = f"""
SELECT tenant, action, rule, count() AS records, sum(matches) AS matches, {ms("max(at)")} AS at FROM
(
    SELECT tenant, action, occurred_at AS at, if(empty(found), [''], mapKeys(found)) AS rules,
        if(empty(found), [0], mapValues(found)) AS counts
    FROM governance_audit FINAL WHERE {TENANT} AND {between("occurred_at")}
)
ARRAY JOIN rules AS rule, counts AS matches
GROUP BY tenant, action, rule ORDER BY records DESC, tenant, action, rule LIMIT 200
"""


@reads("/api/pipeline", installation=True)
def pipeline(call: Call) -> Answer:
    """Return lag, dead letters, governance and spool."""
    since, until = call.time_range()
    bounds = {"since": since, "until": until}
    settings = call.services.settings
    jobs, fault = lag_of_jobs(settings)
    spool = list(spool_sizes(settings.gateway_spool))
    return {
        "lag": [{"job": name, "records": records} for name, records in sorted(jobs.items())],
        "lag_fault": fault,
        "counts": call.query_installation(_COUNTS, fresh_s=2.0, **bounds),
        "letters": call.query_installation(
            _LETTERS, fresh_s=1.0, error=call.text("error"), topic=call.text("topic"), **bounds
        ),
        "governance": call.query(_GOVERNANCE, fresh_s=3.0, **bounds),
        "spool": {"files": len(spool), "bytes": sum(spool)},
    }


def spool_sizes(folder: Path) -> Iterator[int]:
    """Yield the sizes in bytes of the spool's files; the gateway deletes files meanwhile."""
    for file in folder.glob("**/*"):
        with suppress(FileNotFoundError):
            status = file.stat()
            if stat.S_ISREG(status.st_mode):
                yield status.st_size


@acts("/api/dead-letters/redrive", names=("ids",), installation=True)
def redrive_letters(call: Call) -> Done:
    """Send the records of the dead letters in `ids` again; letters whose record was sent before are left out."""
    ids = call.body.get("ids")
    if not isinstance(ids, list) or not 1 <= len(ids) <= MOST_LETTERS or not all(isinstance(one, str) for one in ids):
        raise BadRequest(f"send ids: 1 to {MOST_LETTERS} ids of dead letters")
    settings = call.services.settings
    try:
        letters = read_letters(settings).select(LetterFilter(ids=frozenset(ids)))
        results = redrive(settings, letters, dry_run=False)
    except (KafkaException, DeliveryFailed, RegistryUnavailable) as error:
        raise LogUnavailable(f"the records could not be sent again: {error}") from error
    sent = [result.letter["event_id"] for result in results if result.fault is None]
    faults = {result.letter["event_id"]: result.fault for result in results if result.fault is not None}
    return Done(f"sent {' '.join(sent) or 'nothing'}", {"sent": len(sent), "not_sent": faults})


ENDPOINTS = (pipeline, redrive_letters)
