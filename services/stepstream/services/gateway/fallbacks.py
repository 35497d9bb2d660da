"""Send a call to its target and, while that cannot serve it, to the target's fallbacks in turn.

A fallback gets the call if the target cannot be reached or answers that it cannot serve it. A target that took the call
and gave no answer may have done the work: then no other gets it. No fallback gets the caller's key, which is meant for
the target.
"""

import time
from collections.abc import Iterable
from itertools import pairwise

from stepstream.services.gateway.api_keys import Credentials
from stepstream.services.gateway.call_plan import CallPlan
from stepstream.services.gateway.errors import NoUpstream
from stepstream.services.gateway.http.client import Reply
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.upstreams import Outgoing, Target

FIRST_FAULT, LAST_FAULT, TOO_MANY = 500, 529, 429
"""Statuses with which a provider says that it cannot serve a call now."""


async def send_call(
    plan: CallPlan,
    incoming: Iterable[tuple[bytes, bytes]],
    credentials: Credentials,
    longest_s: float,
    metrics: Metrics,
) -> Reply:
    """Return the answer of the first target that serves the call, else that of the last.

    Args:
        plan: the call; its `target` becomes the one that answered.
        incoming: the caller's headers.
        credentials: the caller's, for the call's first target only.
        longest_s: seconds after which an error is returned, since the call may have run until then.
        metrics: counts the fallbacks.

    Raises:
        GatewayError: no target answered.
    """
    headers: Outgoing = plan.target.headers(incoming, credentials, plan.upstream_protocol.name)
    targets: list[Target | None] = [plan.target, *_fallbacks(plan), None]
    started = time.monotonic()
    for target, following in pairwise(targets):
        assert target is not None
        plan.route.is_last = following is None
        try:
            reply = await target.send("POST", plan.path, plan.body, headers, plan.route)
        except NoUpstream:
            if following is None:
                raise
        else:
            if following is None or not _cannot_serve(reply.status) or time.monotonic() - started > longest_s:
                return reply
        metrics.fallbacks.labels(target.name, following.name).inc()
        plan.retarget(following)
        headers = following.headers(incoming, Credentials(), plan.upstream_protocol.name)
    raise AssertionError("the last target's answer is returned")


def _fallbacks(plan: CallPlan) -> list[Target]:
    """Return the fallbacks that can serve the call: others do not know a response that the first one stores."""
    if plan.translation is None and plan.call.conversation.previous_response_id:
        return []
    return [target for target in plan.target.fallbacks if plan.upstream_protocol.name in target.speaks]


def _cannot_serve(status: int) -> bool:
    return status == TOO_MANY or FIRST_FAULT <= status <= LAST_FAULT
