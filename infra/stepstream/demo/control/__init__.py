"""Run one fleet under the control plane, let five things happen to it in a random order, and judge the decisions."""
