"""Settings of the controller, the process of the control plane."""

from stepstream.config.base import Section, setting


class ControlSettings(Section):
    """The controller, which decides for each agent and model that a control policy covers."""

    interval_s: float = setting(5.0, "Interval of decisions.", unit="s", gt=0)
    window_s: float = setting(86_400.0, "Age of the oldest trajectories that a decision is based on.", unit="s", ge=60)
    tool_window_s: float = setting(
        900.0,
        "Newest calls of a tool, which are compared with those of 7 days before. At most the `watch_s` of the lever "
        "`tools`: else calls from before a decision raise the alert again.",
        unit="s",
        ge=10,
    )
    hold_every_s: float = setting(3600.0, "Interval of decisions to hold for an unchanged reason.", unit="s", gt=0)
