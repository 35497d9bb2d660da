"""Answer the page Review: queues of what to look at, and the verdicts that people give while looking."""

import uuid
from functools import partial
from importlib.metadata import version
from typing import Any

from stepstream.jobs.governance.consent import strictest_of
from stepstream.services.console.endpoints import TENANT, Answer, BadRequest, Call, Done, acts, reads
from stepstream.services.console.trajectories.timeline import Trajectory, find, persons_of
from stepstream.services.posted_feedback import InvalidFeedback, PostedFeedback, check_feedback, feedback_event
from stepstream.topics.catalogue import FEEDBACK
from stepstream.topics.events import Feedback
from stepstream.topics.ids import DEFAULT_TENANT, derived_id, now_us
from stepstream.topics.trusted_sources import PERSON

VERDICT, TAG = "review", "review_tag"
"""Names of the feedback: the scale with comment and correction, and each tag."""
SCALE = (1, 5)
"""Lowest and highest point of the scale; the feedback's value is the point mapped to 0 to 1."""
MOST_TAGS = 10
_PRODUCER = f"console/{version('stepstream')}"

_RANGE = "fromUnixTimestamp64Micro({since:Int64}, 'UTC')"
# A retraction is later than what it takes back, so it is in the range too.
_RETRACTED = f"(SELECT tenant, retracts FROM feedback WHERE {TENANT} AND occurred_at >= {_RANGE} AND retracts != '')"
_IN_FORCE = f"""occurred_at >= {_RANGE} AND retracts = ''
        AND (tenant, source_event_id) NOT IN {_RETRACTED} AND (tenant, event_id) NOT IN {_RETRACTED}"""
_UNREVIEWED = f"""(tenant, trajectory_id) NOT IN
(
    SELECT tenant, trajectory_id FROM feedback WHERE {TENANT} AND {_IN_FORCE}
        AND startsWith(source, '{PERSON}:')
)"""
_DISAGREEMENT = f"""
SELECT tenant, trajectory_id, step_index, replaceOne(name, 'shadow.', '') AS signal, min(value) AS low,
    max(value) AS high, count() AS verdicts, arraySort(groupUniqArray(source)) AS sources
FROM feedback FINAL
WHERE {TENANT} AND {_IN_FORCE} AND value IS NOT NULL
    AND source IN ('judge', 'verifier', 'prm', 'test', 'user', 'environment') AND {_UNREVIEWED}
GROUP BY tenant, trajectory_id, step_index, signal
HAVING verdicts > 1 AND high - low >= 0.5 ORDER BY high - low DESC, trajectory_id, step_index LIMIT 50
"""
# Mean probability of a response token, a geometric mean.
_UNSURE = f"""
SELECT tenant, trajectory_id, any(agent) AS agent, sum(response_tokens) AS tokens,
    exp(sum(logprob_sum) / tokens) AS certainty
FROM steps FINAL
WHERE {TENANT} AND occurred_at >= {_RANGE} AND fidelity = 'token' AND response_tokens > 0 AND {_UNREVIEWED}
GROUP BY tenant, trajectory_id ORDER BY certainty, trajectory_id LIMIT 50
"""
_ALARMS = f"""
SELECT tenant, agent, model, environment, split, rising, message, since_version FROM alarms_now
WHERE {TENANT} AND state = 'raised' ORDER BY raised_at DESC LIMIT 5
"""
_OF_ALARM = f"""
SELECT tenant, trajectory_id, agent, reward,
    arraySum((name, value) -> if(name = {{rising:String}}, value, 0), component.name, component.value) AS risen
FROM trajectories FINAL
WHERE {TENANT} AND opened_at >= {_RANGE} AND ({{of:String}} = '' OR tenant = {{of:String}})
    AND ({{agent:String}} = '' OR agent = {{agent:String}}) AND model = {{model:String}}
    AND ({{environment:String}} = '' OR environment = {{environment:String}})
    AND split = {{split:String}} AND version_max >= {{version:Int32}} AND {_UNREVIEWED}
ORDER BY risen DESC, trajectory_id LIMIT 20
"""


@reads("/api/review")
def review(call: Call) -> Answer:
    """Return the queues: judges that disagree, low certainty, and trajectories of active alarms."""
    since, _ = call.time_range("7d")
    of_alarms = []
    for alarm in call.query(_ALARMS, fresh_s=2.0):
        rows = call.query(
            _OF_ALARM,
            fresh_s=5.0,
            since=since,
            of=alarm["tenant"],
            agent=alarm["agent"],
            model=alarm["model"],
            environment=alarm["environment"],
            split=alarm["split"],
            rising=alarm["rising"],
            version=alarm["since_version"] or 0,
        )
        of_alarms += [{**row, "message": alarm["message"]} for row in rows]
    return {
        "disagreement": call.query(_DISAGREEMENT, fresh_s=5.0, since=since),
        "unsure": call.query(_UNSURE, fresh_s=5.0, since=since),
        "alarms": of_alarms,
    }


@acts("/api/verdict", names=("tenant", "trajectory_id", "step_index"))
def verdict(call: Call) -> Done:
    """Publish a person's verdict on a step or trajectory as feedback: scale, tags, comment and correction."""
    tenant = call.user.tenant or str(call.body.get("tenant") or DEFAULT_TENANT)
    items = verdict_items(call.body, call.user.name, tenant)
    found = find(partial(call.query, fresh_s=0.0), tenant, items[0].trajectory_id)
    if found is None:
        raise BadRequest(f"tenant {tenant} has no such trajectory: load the page again")
    for event in _events(call, found, items):
        call.services.log.publish(FEEDBACK, event["trajectory_id"], event)
    at = "" if items[0].step_index is None else f" step {items[0].step_index}"
    ids = [str(item.event_id) for item in items]
    return Done(f"{tenant}: {items[0].trajectory_id}{at}", {"event_ids": ids})


def verdict_items(body: Any, person: str, tenant: str) -> list[PostedFeedback]:
    """Return the feedback of a verdict: its scale, comment and correction in one item, and an item for each tag.

    `body` has `trajectory_id`, `event_id` (a UUID that the browser made, so that a repeated request gives the same
    events), and of `step_index`, `scale`, `tags`, `comment` and `correction` at least one besides the first.

    Raises:
        BadRequest: a field is missing, unknown or out of range.
    """
    known = {"trajectory_id", "event_id", "tenant", "step_index", "scale", "tags", "comment", "correction"}
    if unknown := sorted(set(body) - known):
        raise BadRequest(f"unknown field {unknown[0][:50]}; known: {', '.join(sorted(known))}")
    scale, tags = body.get("scale"), body.get("tags") or []
    low, high = SCALE
    if scale is not None and (type(scale) is not int or not low <= scale <= high):
        raise BadRequest(f"scale must be a whole number from {low} to {high}")
    if not isinstance(tags, list) or len(tags) > MOST_TAGS:
        raise BadRequest(f"tags must be a list of at most {MOST_TAGS} words")
    try:
        event_id = str(uuid.UUID(str(body.get("event_id"))))
    except ValueError:
        raise BadRequest("event_id must be a UUID") from None
    about = {
        "trajectory_id": body.get("trajectory_id"),
        "step_index": body.get("step_index"),
        "source": f"{PERSON}:{person}",
    }
    said = {
        "value": None if scale is None else (scale - low) / (high - low),
        "comment": body.get("comment") or None,
        "demonstration": body.get("correction") or None,
    }
    items = (
        [{**about, "name": VERDICT, "event_id": event_id, **said}] if any(v is not None for v in said.values()) else []
    )
    items += [
        {
            **about,
            "name": TAG,
            "category": tag,
            "event_id": derived_id("console@1", event_id, TAG, str(tag), tenant=tenant),
        }
        for tag in dict.fromkeys(map(str, tags))
    ]
    if not items:
        raise BadRequest("the verdict says nothing: choose a point of the scale, a tag, a comment or a correction")
    try:
        return [check_feedback(item) for item in items]
    except InvalidFeedback as error:
        raise BadRequest(str(error)) from None


def _events(call: Call, found: Trajectory, items: list[PostedFeedback]) -> list[Feedback]:
    """Return the events, under the person and the strictest consent of the trajectory's steps.

    Raises:
        BadRequest: the consent permits no use of feedback.
    """
    persons = persons_of(partial(call.query), found)
    consent: Any = strictest_of("train", *(given for _, given in persons))  # type: ignore[arg-type]
    if consent == "none":
        raise BadRequest("the consent of this trajectory permits no use of feedback")
    user = next((name for name, _ in persons if name), None)
    return [
        feedback_event(item, consent=consent, tenant=found.tenant, user=user, now_us=now_us(), producer=_PRODUCER)
        for item in items
    ]


ENDPOINTS = (review, verdict)
