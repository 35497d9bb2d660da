"""What is to be done with a call: where it belongs, who gets it, in which protocol, and with which body."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.core import lenient_json
from stepstream.services.gateway.api_keys import Credentials
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.tree import prompt_of
from stepstream.services.gateway.errors import BadRequest, UnknownResponse
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import Asked, ChatTranslation, Conversation, ModelProtocol
from stepstream.services.gateway.protocols.chat.protocol import CHAT
from stepstream.services.gateway.routing import native
from stepstream.services.gateway.step_builder import Call
from stepstream.services.gateway.upstreams import Target, Upstreams
from stepstream.topics.events import new_sampling
from stepstream.topics.ids import new_event_id

log = logging.getLogger(__name__)

WARN_EVERY_S = 60.0


@dataclass(slots=True)
class CallPlan:
    """One call, ready to be sent."""

    call: Call
    protocol: ModelProtocol
    """The caller's."""
    spoken: ModelProtocol
    """The one in which the upstream is called: the caller's own, or chat."""
    target: Target
    path: str
    """Where the upstream is called; with the caller's query where it gets the caller's own call."""
    request: dict[str, Any]
    """As the upstream gets it, but for additions."""
    body: bytes
    asked: Asked
    translation: ChatTranslation | None = None
    kept: bool = False
    """Whether a later call may go on from the response by its id, which the upstream itself does not keep."""
    stored: bool = False
    """Whether a later call may name what is in the answer."""
    instructions: int = 0
    """How many leading messages of a translated call are its own alone: a later call goes on without them."""
    persons: dict[str, int] = field(default_factory=dict)
    """Who took part in what a translated call goes on from, and since when: microseconds since the Unix epoch."""


class CallPlanner:
    """Makes plans."""

    def __init__(
        self, upstreams: Upstreams, contexts: ContextCache, histories: SavedResponses, metrics: Metrics
    ) -> None:
        self._upstreams = upstreams
        self._contexts = contexts
        self._histories = histories
        self._metrics = metrics
        self._warned_at = -WARN_EVERY_S

    def plan(
        self,
        protocol: ModelProtocol,
        request: dict[str, Any],
        body: bytes,
        identity: Identity,
        shown: Credentials,
        started_us: int,
    ) -> CallPlan:
        """The plan for one call, which takes its place in its trajectory now.

        Raises:
            BadRequest: its upstream speaks no protocol that it can be told in, what it goes on from is not known, or
                it names a step of a parent that it does not name.
        """
        self._name_parent(identity)
        request = protocol.resolved(request, lambda item_id: self._histories.item(identity.tenant, item_id))
        stored = request.get("store") is not False
        said = _read(protocol, request)
        target = self._upstreams.serving(said.model)
        tenant, previous_id = identity.tenant, said.previous_response_id
        before = self._contexts.answered(tenant, previous_id) if previous_id else None
        history = None
        spoken, translation, conversation = protocol, None, said
        if not native(protocol.name, target.speaks, target.name, protocol.path):
            history = self._histories.get(tenant, previous_id) if previous_id else None
            if previous_id and history is None:
                raise UnknownResponse(
                    f"Previous response with id '{previous_id}' not found: it is not known here (any more), and "
                    f"{target.name} keeps no conversations; send the whole conversation as input"
                )
            translation = protocol.translation(request, history)
        if translation is not None:
            spoken, request, body = CHAT, translation.request, orjson.dumps(translation.request)
            conversation = _read(CHAT, request)
            conversation.user = said.user or conversation.user
        trajectory_id = identity.trajectory_id
        if not trajectory_id:
            known = history.trajectory_id if history is not None else ""  # by an earlier gateway
            trajectory_id = before.trajectory.id if before is not None else known or identity.trace_id
        # A translated conversation is whole; a native one begins where the response that it names ended.
        prompt = prompt_of(conversation.messages, before if translation is None else None)
        scope = tenant, shown.key_id, identity.agent
        place = self._contexts.place(tenant, trajectory_id, identity.step_index, prompt, scope)
        return CallPlan(
            call=Call(identity, conversation, prompt, place, new_event_id(), started_us),
            protocol=protocol,
            spoken=spoken,
            target=target,
            path=spoken.path,
            request=request,
            body=(spoken.with_additions(body, request, target.plain_logprobs) if target.gives_tokens else body),
            asked=spoken.asked(request),
            translation=translation,
            kept=translation is not None and protocol.name == "responses",
            stored=stored,
            instructions=said.instructions,
            persons=history.persons if history is not None else {},
        )

    def _name_parent(self, identity: Identity) -> None:
        """Fills in which step called a sub-agent that names its parent alone: the parent's newest, if it is known."""
        parent = identity.parent_trajectory_id
        if parent is None:
            if identity.parent_step_index is not None:
                raise BadRequest("x-stepstream-parent-step says nothing without x-stepstream-parent: name both")
        elif identity.parent_step_index is None:
            identity.parent_step_index = self._contexts.newest(identity.tenant, parent)
            if identity.parent_step_index is None:
                self._orphan(parent)

    def _orphan(self, parent: str) -> None:
        self._metrics.parents_unknown.inc()
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            log.warning(
                "a sub-agent's parent %r is not known here: its calls are recorded without the step that made them; "
                "name it in x-stepstream-parent-step",
                parent,
            )


def parse_request(body: bytes) -> dict[str, Any]:
    """The request of a call.

    Raises:
        BadRequest: not a JSON object.
    """
    try:
        request = lenient_json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadRequest("the body must be a JSON object")
    return request


def _read(protocol: ModelProtocol, request: dict[str, Any]) -> Conversation:
    """What a request says; whatever is in it, the call goes on, and what is wrong is the upstream's to refuse."""
    try:
        return protocol.read(request)
    except Exception:
        log.exception("a %s request cannot be read: its step is recorded without messages", protocol.name)
        model = request.get("model")
        return Conversation([], model if isinstance(model, str) else "", new_sampling())
