"""Plan a call: its position in a trajectory, its target, the protocol and body to send, and what to save."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from stepstream.core import lenient_json
from stepstream.services.apply_harness import tool_versions, with_harness
from stepstream.services.gateway.context import packed_tokens
from stepstream.services.gateway.context.cache import ContextCache
from stepstream.services.gateway.context.saved_responses import SavedResponses
from stepstream.services.gateway.context.tree import CallerScope, Prompt, StepPosition, Trajectory, prompt_of
from stepstream.services.gateway.errors import BadRequest, UnknownResponse, encode_request
from stepstream.services.gateway.grant import Grant
from stepstream.services.gateway.harness import UNCHANGED, HarnessChooser
from stepstream.services.gateway.identity import Identity
from stepstream.services.gateway.metrics import Metrics
from stepstream.services.gateway.protocols.base import (
    ChatTranslation,
    Conversation,
    ModelProtocol,
    RequestedAdditions,
)
from stepstream.services.gateway.protocols.chat.protocol import CHAT, with_worker_fields
from stepstream.services.gateway.response_ids import TenantIds, check_objects, with_original_id
from stepstream.services.gateway.routing import speaks_natively
from stepstream.services.gateway.step_builder import Call
from stepstream.services.gateway.tracks import TrackChooser
from stepstream.services.gateway.train_sampling import TrainSampling, apply_train_sampling
from stepstream.services.gateway.upstreams import Target, Upstreams
from stepstream.services.gateway.worker_pool import Route
from stepstream.topics.events import Harness, new_sampling
from stepstream.topics.ids import new_event_id
from stepstream.topics.sampling_restrictions import MASKED, restriction_of

log = logging.getLogger(__name__)

WARN_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class RecordedPrefix:
    """The tokens of an earlier step that the call continues."""

    tokens: int = 0
    """Number of tokens handed to the worker; 0: none."""
    history_changed: bool = False
    """True if tokens are known, but of no conversation that the call continues."""


PREFIX_UNKNOWN = RecordedPrefix()
HISTORY_CHANGED = RecordedPrefix(history_changed=True)


@dataclass(slots=True)
class CallPlan:
    """One call, ready to be sent."""

    call: Call
    protocol: ModelProtocol
    """The caller's protocol."""
    upstream_protocol: ModelProtocol
    """The protocol that the upstream is called in: the caller's, or chat."""
    target: Target
    path: str
    """Path at the upstream; with the caller's query if the call is not translated."""
    request: dict[str, Any]
    """The upstream's request without additions."""
    body: bytes
    requested: RequestedAdditions
    prefix: RecordedPrefix
    route: Route
    translation: ChatTranslation | None = None
    """None: the upstream speaks the caller's protocol."""
    saves_response: bool = False
    """True if a later call may continue from the response's id, which the upstream does not keep."""
    saves_items: bool = False
    """True if a later call may refer to items of the answer."""
    instructions: int = 0
    """Number of leading messages of a translated call that a later call does not inherit."""
    participants: dict[str, int] = field(default_factory=dict)
    """Persons in the conversation that a translated call continues, as in `History`."""
    key_id: str = ""
    """Id of the API key; empty: none."""
    tool_versions: str = ""
    """Tools with the versions that the harness pins, as the response names them; empty: none."""
    response_ids: TenantIds | None = None
    """Ids of responses in replies get the tenant's tag; None: they are unchanged."""

    def retarget(self, target: Target) -> None:
        """Send the call to another target, which speaks the same protocol."""
        if target.gives_tokens != self.target.gives_tokens:
            self.body = encode_request(self.request)
            if target.gives_tokens:
                self.body = self.upstream_protocol.with_additions(self.body, self.request, target.plain_logprobs)
        self.target = target


class CallPlanner:
    """Makes plans."""

    def __init__(
        self,
        upstreams: Upstreams,
        contexts: ContextCache,
        saved_responses: SavedResponses,
        metrics: Metrics,
        tracks: TrackChooser,
        harnesses: HarnessChooser,
        check_model: Callable[[Grant, str], None],
        train_sampling: TrainSampling = "mark",
        mask_ids: int = 0,
    ) -> None:
        """`check_model`: raises Forbidden if a key may not call, or cannot pay for, a harness's model.

        `train_sampling`: rule for calls to workers whose steps may be trained on.

        `mask_ids`: largest number of ids of a token's sampling mask; 0: ask workers for none.
        """
        self._upstreams = upstreams
        self._contexts = contexts
        self._saved_responses = saved_responses
        self._metrics = metrics
        self._tracks = tracks
        self._harnesses = harnesses
        self._check_model = check_model
        self._train_sampling = train_sampling
        self._mask_ids = mask_ids
        self._warned_at = -WARN_EVERY_S

    def plan(
        self,
        protocol: ModelProtocol,
        request: dict[str, Any],
        body: bytes,
        identity: Identity,
        grant: Grant,
        started_us: int,
    ) -> CallPlan:
        """Return the plan of one call, and reserve its position in its trajectory.

        Raises:
            BadRequest: the upstream's protocols cannot express the call, the response that it continues is unknown,
                it names a parent's step without the parent, or `gateway.train_sampling` rejects its sampling.
            Forbidden: it names a stored object of the operator's account that its API key does not declare, or its
                harness a model that the key may not call.
            UnknownModel: nothing serves the model.
            Overloaded: the target cannot take another call now.
        """
        self._set_parent_step(identity)
        tenant = identity.tenant
        request = protocol.resolve_references(request, lambda item_id: self._saved_responses.item(tenant, item_id))
        harness = self._harness_of(identity)
        if harness is not None:
            self._check_model(grant, harness["model"] or model_of(request))
            request = with_harness(protocol.name, request, harness)
            body = orjson.dumps(request)
        saves_items = request.get("store") is not False
        conversation = _read(protocol, request)
        instructions = conversation.instructions
        target = self._upstreams.for_model(conversation.model)
        target.admit(conversation.model)
        previous_id = conversation.previous_response_id
        previous = self._contexts.step_of_response(tenant, previous_id) if previous_id else None
        history = None
        upstream_protocol, translation = protocol, None
        if not speaks_natively(protocol.name, target.speaks, target.name, protocol.path):
            history = self._saved_responses.get(tenant, previous_id) if previous_id else None
            if previous_id and history is None:
                raise UnknownResponse(
                    f"Previous response with id '{previous_id}' not found: it is unknown or expired, and "
                    f"{target.name} keeps no conversations; send the whole conversation as input"
                )
            translation = protocol.translation(request, history)
        if translation is not None:
            upstream_protocol, request, body = CHAT, translation.request, orjson.dumps(translation.request)
            user = conversation.user
            conversation = _read(CHAT, request)
            conversation.user = user or conversation.user
        response_ids = None
        if grant.key_id and any(each.account_ids is not None for each in (target, *target.fallbacks)):
            check_objects(request, grant)
            if target.account_ids is not None:
                response_ids = target.account_ids.of(tenant)
                request = with_original_id(request, response_ids)
            body = orjson.dumps(request)  # of two fields of one name, the upstream reads the one that was checked
        may_train = target.plain_logprobs and identity.split == "train" and identity.consent == "train"
        if may_train and upstream_protocol is CHAT:
            allowed = apply_train_sampling(request, self._train_sampling)
            if allowed is not request:
                request, body = allowed, orjson.dumps(allowed)
                conversation.sampling = CHAT.read_sampling(request)
        trajectory_id = identity.trajectory_id
        if not trajectory_id:
            saved_id = history.trajectory_id if history is not None else ""  # set by an earlier gateway process
            trajectory_id = previous.trajectory.id if previous is not None else saved_id
        # A translated conversation is whole; a native one begins after the response that it names.
        prompt = prompt_of(conversation.messages, previous if translation is None else None)
        conversation.encoded_tools()  # refuses the call, where no step could record them
        scope = _caller_scope(identity, grant.key_id, conversation)
        position = self._contexts.place(tenant, trajectory_id, identity.step_index, prompt, scope, identity.trace_id)
        if identity.applies_harness and identity.trajectory_id:
            position.trajectory.harness = UNCHANGED if harness is None else harness["version"]
        if target.gives_tokens:
            body = upstream_protocol.with_additions(body, request, target.plain_logprobs)
        prefix = PREFIX_UNKNOWN
        if target.plain_logprobs and upstream_protocol is CHAT:
            is_masked = may_train and restriction_of(conversation.sampling) in MASKED
            mask_ids = self._mask_ids if is_masked else 0
            prefix, body = self._hand_over_prefix(
                position, prompt, conversation.model, request, body, started_us, mask_ids
            )
        return CallPlan(
            call=Call(identity, conversation, prompt, position, new_event_id(), started_us),
            protocol=protocol,
            upstream_protocol=upstream_protocol,
            target=target,
            path=upstream_protocol.path,
            request=request,
            body=body,
            requested=upstream_protocol.requested_additions(request),
            prefix=prefix,
            route=self._route(position.trajectory, conversation.model, target, harness),
            translation=translation,
            saves_response=translation is not None and protocol.name == "responses" and saves_items,
            saves_items=saves_items,
            instructions=instructions,
            participants=history.participants if history is not None else {},
            key_id=grant.key_id,
            tool_versions="" if harness is None else tool_versions(harness),
            response_ids=response_ids if protocol.name == "responses" and translation is None else None,
        )

    def _hand_over_prefix(
        self,
        position: StepPosition,
        prompt: Prompt,
        model: str,
        request: dict[str, Any],
        body: bytes,
        started_us: int,
        mask_ids: int,
    ) -> tuple["RecordedPrefix", bytes]:
        """Return what is known of the step before, and the body with its tokens and other fields for workers."""
        trajectory = position.trajectory
        trajectory.started_us = trajectory.started_us or started_us
        step = self._contexts.recorded_prefix(position, prompt, model)
        if step is None:
            body = with_worker_fields(body, request, trajectory.started_us, mask_ids=mask_ids)
            return (HISTORY_CHANGED if trajectory.steps_with_tokens else PREFIX_UNKNOWN), body
        ids = packed_tokens.unpack(step.tokens)
        body = with_worker_fields(body, request, trajectory.started_us, ids, step.messages, mask_ids)
        return RecordedPrefix(len(ids)), body

    def _harness_of(self, identity: Identity) -> Harness | None:
        """Return the harness version to apply, and name it in the step; None: the call stays unchanged."""
        if not identity.applies_harness:
            return None
        tenant, name = identity.tenant, identity.trajectory_id
        if not name:
            self._metrics.harness_unnamed.inc()
            return None
        harness = self._harnesses.choose(tenant, identity.agent, name, self._contexts.harness_of(tenant, name))
        if harness is None:
            self._metrics.harness_none.inc()
            return None
        self._metrics.harness_applied.inc()
        identity.harness_version = harness["version"]
        return harness

    def _route(self, trajectory: Trajectory, model: str, target: Target, harness: Harness | None) -> Route:
        if not target.plain_logprobs:  # a provider
            return Route(model)
        attempts = None if harness is None else harness["attempts"]
        track, canary = self._tracks.choose(trajectory, model)
        return Route(model, trajectory.id, trajectory.worker, track, canary, attempts=attempts)

    def _set_parent_step(self, identity: Identity) -> None:
        """Fill in the parent's step of a sub-agent that names only the parent: its newest step, if known."""
        parent = identity.parent_trajectory_id
        if parent is None:
            if identity.parent_step_index is not None:
                raise BadRequest("x-stepstream-parent-step needs x-stepstream-parent: send both")
        elif identity.parent_step_index is None:
            identity.parent_step_index = self._contexts.newest_index(identity.tenant, parent)
            if identity.parent_step_index is None:
                self._count_unknown_parent(parent)

    def _count_unknown_parent(self, parent: str) -> None:
        self._metrics.parents_unknown.inc()
        now = time.monotonic()
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            log.warning(
                "a sub-agent's parent %r is unknown: its calls are recorded without the parent's step; "
                "name it in x-stepstream-parent-step",
                parent,
            )


def _caller_scope(identity: Identity, key_id: str, conversation: Conversation) -> CallerScope:
    """Return what must be equal in calls of one trajectory that none of them names."""
    return (
        identity.tenant,
        key_id,
        identity.agent,
        identity.task_id,
        identity.group_id or "",
        identity.user or conversation.user or "",
        identity.environment,
        identity.split,
        identity.parent_trajectory_id or "",
    )


def parse_request(body: bytes) -> dict[str, Any]:
    """Return the request in a call's body.

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


def model_of(request: dict[str, Any]) -> str:
    """Return the model that a request names; empty: none."""
    model = request.get("model")
    return model if isinstance(model, str) else ""


def _read(protocol: ModelProtocol, request: dict[str, Any]) -> Conversation:
    """Return the request's conversation; an unreadable one is empty, since the upstream has to reject it."""
    try:
        return protocol.read(request)
    except Exception:
        log.exception("a %s request cannot be read: its step is recorded without messages", protocol.name)
        return Conversation([], model_of(request), new_sampling())
