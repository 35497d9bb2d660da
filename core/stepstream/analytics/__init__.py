"""Formulas of what Stepstream reports and decides by: success, cost, reliability, agreement, sequential tests. Pure.

One definition of each figure for the views, the console and the control plane. Every function is a fold over plain
values; randomness comes from a seed. A figure without data is null with a reason (`Estimate.reason`), never 0.
"""

from stepstream.analytics.estimate import Estimate, undefined

__all__ = ["Estimate", "undefined"]
