"""Makes a step or feedback safe to learn from: redaction under rule 6, consent, provenance. Pure.

Token ids spell out the text that they stand for, so redacting text alone would change nothing. Where a redaction
touched a response, its token ids, logprobs, mask and spans go; where it touched a prompt, the prompt's token ids go,
and what is left can no longer be laid over tokens at all. The digest of a shared prefix goes with a redacted prefix
too: somebody who knows all of the prefix but a card number could try card numbers against it.
"""

from collections import Counter

from stepstream.jobs.redaction import Redactor
from stepstream.jobs.redaction.fields import (
    redact_feedback,
    redact_feedback_ids,
    redact_messages,
    redact_step_fields,
    redact_tools,
)
from stepstream.topics.events import Feedback, Governance, Step, new_governance
from stepstream.topics.ids import derived_id


def govern_step(
    job: str, step: Step, prefix_clean: bool, redactor: Redactor, policy_version: int = 0
) -> tuple[Step, bool]:
    """The governed step, and whether its whole context (prompt, shared part included, and response) is clean.

    Args:
        job: name and version of the job.
        step: a valid step with consent `train` or `analyse`; it is not changed.
        prefix_clean: whether the step before passed without a redaction in its whole context; of no account where
            nothing is shared.
        redactor: makes the pseudonyms.
        policy_version: version of the tenant's policy that it is governed under; 0: the built-in one.
    """
    in_prompt: Counter[str] = Counter()
    in_response: Counter[str] = Counter()
    governed = step.copy()
    counts = [in_prompt] * len(step["messages"]) + [in_response]
    *messages, response = redact_messages([*step["messages"], step["response"]], redactor, counts)
    governed["messages"], governed["response"] = messages, response
    redact_tools(governed, redactor, in_prompt)
    if step["error"] is not None:
        governed["error"] = redactor.redact(step["error"], in_response)
    in_ids: Counter[str] = Counter()  # of these no token tells
    redact_step_fields(governed, redactor, in_ids)
    inherits = step["prompt_shared_tokens"] > 0 or step["prompt_shared_messages"] > 0
    prefix_dirty = inherits and not prefix_clean
    flags = [f"redacted:{rule}" for rule in sorted(in_prompt.keys() | in_response.keys())]
    if prefix_dirty:
        flags.append("redacted:prefix")
    if in_prompt or prefix_dirty:
        _drop_prompt_tokens(governed)
    if in_prompt or prefix_dirty or in_response:
        _drop_response_tokens(governed)
    clean = not (in_prompt or prefix_dirty or in_response)
    if not clean and governed["fidelity"] == "token":
        governed["fidelity"] = "text"
    if step["consent"] != "train":
        flags.append(f"consent:{step['consent']}")
    if step["fidelity"] != "token":
        flags.append(f"fidelity:{step['fidelity']}")
    _stamp(governed, job, policy_version, in_prompt + in_response + in_ids, flags, trainable=clean and not flags)
    return governed, clean


def govern_feedback(job: str, feedback: Feedback, redactor: Redactor, policy_version: int = 0) -> Feedback:
    """The governed feedback; `feedback` has consent `train` or `analyse` and is not changed."""
    found: Counter[str] = Counter()
    governed = feedback.copy()
    redact_feedback(governed, redactor, found)
    flags = [f"redacted:{rule}" for rule in sorted(found)]
    if feedback["consent"] != "train":
        flags.append(f"consent:{feedback['consent']}")
    in_ids: Counter[str] = Counter()
    redact_feedback_ids(governed, redactor, in_ids)
    _stamp(governed, job, policy_version, found + in_ids, flags, trainable=not flags)
    return governed


def _stamp(
    governed: Step | Feedback, job: str, version: int, found: "Counter[str]", flags: list[str], *, trainable: bool
) -> None:
    source = governed["event_id"]
    record: Governance = new_governance(
        source_event_id=source,
        job=job,
        policy_version=version,
        redactions=dict(found),
        trainable=trainable,
        flags=flags,
    )
    governed["governed"] = record
    governed["event_id"] = derived_id(job, source, version) if version else derived_id(job, source)


def _drop_prompt_tokens(step: Step) -> None:
    step["prompt_token_ids"] = []
    step["prompt_shared_tokens"] = 0
    step["prompt_shared_digest"] = None


def _drop_response_tokens(step: Step) -> None:
    step["response_token_ids"] = []
    step["response_logprobs"] = []
    step["loss_mask"] = []
    step["policy_spans"] = []
