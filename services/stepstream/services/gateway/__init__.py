"""The OpenAI-compatible gateway: passes model calls on, records each as a step, and takes feedback."""
