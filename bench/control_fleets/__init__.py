"""Baselines for the control plane's bench."""
