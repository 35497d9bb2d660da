"""Verifiers: what judges the work of an agent, as plug-ins behind one small interface."""
