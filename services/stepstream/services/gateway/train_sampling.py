"""Apply `gateway.train_sampling` to calls whose steps may be trained on. Pure.

The learner trains with importance weights only on tokens from the model's whole softmax. `mark` records a restriction
in the step, `force` removes truncation and penalties from the request, `reject` answers 400. Greedy sampling, biases
and grammars are part of what the agent asks for: `force` leaves them, and they are recorded.
"""

from typing import Any, Literal

from stepstream.services.gateway.errors import RestrictedSampling
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.topics.sampling_restrictions import restriction_of

TrainSampling = Literal["force", "mark", "reject"]

_FORCED = ("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Fields that `force` removes: a worker's default of each keeps the whole softmax."""


def apply_train_sampling(request: dict[str, Any], rule: TrainSampling) -> dict[str, Any]:
    """Return the chat completion to send to an inference worker: the request itself if nothing changes.

    Raises:
        RestrictedSampling: the rule is `reject` and a parameter restricts the softmax; `param` names it.
    """
    if rule == "mark" or not restriction_of(CHAT.read_sampling(request)):
        return request
    if rule == "force":
        return {name: value for name, value in request.items() if name not in _FORCED}
    name = next((name for name in request if restriction_of(CHAT.read_sampling({name: request[name]}))), "")
    raise RestrictedSampling(name, request.get(name))
