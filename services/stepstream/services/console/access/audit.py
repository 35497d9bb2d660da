"""Record each action of a person on the log: before it begins, and again with its result."""

import logging

from stepstream.services.console.endpoints import Answer, Call, Endpoint
from stepstream.services.console.event_log import EventLog, LogUnavailable
from stepstream.topics.catalogue import CONSOLE_ACTIONS
from stepstream.topics.events import ConsoleAction, new_console_action
from stepstream.topics.ids import new_event_id, now_us

log = logging.getLogger(__name__)


def run_action(endpoint: Endpoint, call: Call) -> Answer:
    """Run an action between its two records.

    Raises:
        LogUnavailable: the first record could not be written; the action was not begun.
    """
    assert endpoint.act is not None
    user = call.user
    audit = Audit(call.services.log, endpoint.path, user.name, user.role, user.tenant)
    target = _requested_target(endpoint, call)
    audit.record("requested", target=target)
    try:
        done = endpoint.act(call)
    except Exception as error:
        audit.try_record("failed", target=target, reason=f"{type(error).__name__}: {error}")
        raise
    audit.try_record("done", target=done.target)
    return done.answer


def _requested_target(endpoint: Endpoint, call: Call) -> str:
    """Return the ids and names in the request, which nobody has checked yet."""
    values = [call.body.get(name) for name in endpoint.names]
    listed = [one for value in values for one in (value if isinstance(value, list) else [value])]
    return " ".join(str(one) for one in listed if isinstance(one, str | int))


class Audit:
    """The records of one action."""

    def __init__(self, event_log: EventLog, action: str, name: str, role: str = "", tenant: str = "") -> None:
        self._log = event_log
        self._action = action
        self._name, self._role, self._tenant = name, role, tenant
        self._id = new_event_id()

    def record(self, state: str, *, target: str = "", reason: str = "") -> None:
        """Write a record; block until it is durable.

        Raises:
            LogUnavailable: Kafka or the registry does not answer.
        """
        record: ConsoleAction = new_console_action(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            action_id=self._id,
            user=self._name,
            role=self._role,
            tenant=self._tenant,
            action=self._action,
            state=state,
            target=target[:1000],
            reason=reason[:1000],
        )
        self._log.publish(CONSOLE_ACTIONS, self._name, record)

    def try_record(self, state: str, *, target: str = "", reason: str = "") -> None:
        """Write a record; if that fails, log it: what was done is done."""
        try:
            self.record(state, target=target, reason=reason)
        except LogUnavailable as error:
            log.error("action %s of %s: %s is not on the log: %s", self._action, self._name, state, error)
