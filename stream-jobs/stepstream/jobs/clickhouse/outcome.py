"""The outcome of a row of `trajectories`, one expression for rollups, views, the console and the controller.

`statistics/outcome.py` is the same rule for labels.
"""

OUTCOME = "if(success IS NULL AND end = 'truncated' AND empty(pending), false, success)"
"""True: success, false: failure, NULL: lost, or not judged yet.

A time-out of the agent is a failure, once no feedback is waited for any more. A closed attempt without an outcome is
waited for while `pending` has a required component: `label` empties it after `wait_s`.
"""
