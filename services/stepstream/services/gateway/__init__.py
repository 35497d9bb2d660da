"""Proxy model calls, record each as a step, and accept feedback and OpenTelemetry spans."""
