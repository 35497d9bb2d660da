"""Decide when to raise and to clear the alarm about a gap between engine and learner. Pure: callers pass the time.

The gap is known for an update whose tokens were sampled by the version that it trains from. An alarm is raised by the
first such update whose `mu_gap_max` exceeds `learner.max_mu_gap`, and cleared by the next one that does not.
"""

from collections.abc import Iterable, Mapping

from stepstream.learner import JOB
from stepstream.learner.training.update_stats import gap_warning
from stepstream.topics.alarm_tenant import ENGINE_GAP
from stepstream.topics.events import Alarm, new_alarm
from stepstream.topics.ids import derived_id

_FIGURE = "mu_gap_max"


class GapAlarm:
    """The alarm of one model; the alarms on the log are its only state."""

    def __init__(self, model: str, most: float, decisions: Iterable[Alarm] = ()) -> None:
        """Continue from earlier decisions, in the order of the log.

        Args:
            model: model of the learner.
            most: largest allowed gap in nats.
            decisions: earlier decisions; those about other models and of other kinds are ignored.
        """
        self._model, self._most = model, most
        own = (alarm for alarm in decisions if (alarm["kind"], alarm["model"]) == (ENGINE_GAP, model))
        self._known: dict[str, Alarm] = {alarm["alarm_id"]: alarm for alarm in own}

    @property
    def active(self) -> Alarm | None:
        """The active alarm; None: engine and learner agree, as far as is known."""
        return next((alarm for alarm in self._known.values() if alarm["state"] == "raised"), None)

    def decide(self, figures: Mapping[str, float], version: int, trajectories: int, now_us: int) -> Alarm | None:
        """Return the decision that an update's figures require; None: none.

        Args:
            figures: figures of the update.
            version: version that it trained from.
            trajectories: number of its attempts.
            now_us: time in microseconds since the Unix epoch.
        """
        if _FIGURE not in figures:
            return None
        active, warning = self.active, gap_warning(figures, version, self._most)
        if bool(active) == bool(warning):
            return None
        if active:
            return self._next({**active, "state": "cleared"}, now_us)
        raised = new_alarm(
            event_id="",
            occurred_at_us=0,
            alarm_id=derived_id(JOB, "alarm", ENGINE_GAP, self._model, version),
            state="raised",
            kind=ENGINE_GAP,
            tenant="",
            agent="",
            model=self._model,
            reward_spec="",
            rising=_FIGURE,
            falling="",
            rising_before=0.0,
            rising_after=figures[_FIGURE],
            falling_before=0.0,
            falling_after=0.0,
            trajectories_before=0,
            trajectories_after=trajectories,
            p_value=0.0,
            threshold=self._most,
            since_version=version,
            message=f"{self._model}@{version}: {warning}",
        )
        return self._next(raised, now_us)

    def _next(self, alarm: Alarm, now_us: int) -> Alarm:
        """Keep and return the decision as an event, derived from the previous decision about the alarm."""
        earlier = self._known.get(alarm["alarm_id"])
        origin = "" if earlier is None else earlier["event_id"]
        event_id = derived_id(JOB, alarm["alarm_id"], alarm["state"], origin)
        self._known[alarm["alarm_id"]] = {**alarm, "event_id": event_id, "occurred_at_us": now_us}
        return self._known[alarm["alarm_id"]]
