"""Build the governed form of a step or feedback: redact texts and their tokens, apply consent, add provenance. Pure.

Token ids decode to the text, so a redaction must remove them too. A redacted response loses its token ids, logprobs,
mask and spans. A redacted prompt loses its token ids, and its response the same, because they cannot be aligned any
more. A redacted prefix also loses its digest: who knows the rest of the prefix could test card numbers against it.
"""

from collections import Counter

from stepstream.core.prices import Prices
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
    """Return the governed step, and True if its context (shared prefix, prompt and response) has no redaction.

    Args:
        job: name and version of the job.
        step: a valid step with consent `train` or `analyse`; it is not changed.
        prefix_clean: True if the context of the continued step has no redaction; ignored if nothing is shared.
        redactor: replaces values by pseudonyms.
        policy_version: version of the tenant's policy; 0: the built-in one.
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
    in_ids: Counter[str] = Counter()  # these fields are not in the tokens
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
    """Return the governed feedback; `feedback` has consent `train` or `analyse` and is not changed."""
    in_texts: Counter[str] = Counter()
    governed = feedback.copy()
    redact_feedback(governed, redactor, in_texts)
    flags = [f"redacted:{rule}" for rule in sorted(in_texts)]
    if feedback["consent"] != "train":
        flags.append(f"consent:{feedback['consent']}")
    in_ids: Counter[str] = Counter()
    redact_feedback_ids(governed, redactor, in_ids)
    _stamp(governed, job, policy_version, in_texts + in_ids, flags, trainable=not flags)
    return governed


def call_cost(step: Step, prices: Prices) -> float | None:
    """Return the cost of the step's call in US dollars; None: its tokens are unknown, or its model has no price."""
    prompt, response = step["usage_prompt_tokens"], step["usage_response_tokens"]
    if step["fidelity"] == "token":
        prompt = step["prompt_shared_tokens"] + len(step["prompt_token_ids"]) if prompt is None else prompt
        response = len(step["response_token_ids"]) if response is None else response
    if prompt is None or response is None:
        return None
    return prices.cost_usd(step["model"], prompt, response)


def _stamp(
    governed: Step | Feedback, job: str, version: int, redactions: "Counter[str]", flags: list[str], *, trainable: bool
) -> None:
    source = governed["event_id"]
    record: Governance = new_governance(
        source_event_id=source,
        job=job,
        policy_version=version,
        redactions=dict(redactions),
        trainable=trainable,
        flags=flags,
    )
    governed["governed"] = record
    origin = (source, version) if version else (source,)
    governed["event_id"] = derived_id(job, *origin, tenant=governed["tenant"])


def _drop_prompt_tokens(step: Step) -> None:
    step["prompt_token_ids"] = []
    step["prompt_shared_tokens"] = 0
    step["prompt_shared_digest"] = None


def _drop_response_tokens(step: Step) -> None:
    step["response_token_ids"] = []
    step["response_logprobs"] = []
    step["loss_mask"] = []
    step["policy_spans"] = []
    step["sampling_mask"] = None
