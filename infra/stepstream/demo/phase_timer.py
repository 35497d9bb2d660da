"""Measure the wall time of each phase of a run, and the CPU time that each process of its stack spends in it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil

Names = Callable[[], Mapping[int, str]]
"""Function that returns names by process id; a descendant counts under the name of its nearest named ancestor."""

_Usage = dict[tuple[int, float], tuple[str, float]]
"""Name and CPU seconds by process id and time of creation."""


class PhaseTimer:
    """Wall and CPU seconds by phase. A phase may be repeated; phases do not contain each other."""

    def __init__(self, names: Names) -> None:
        """Record as phase `start` what this process and its descendants have used so far."""
        self._names = names
        self._wall: dict[str, float] = {}
        self._cpu: dict[str, dict[str, float]] = {}
        self._add("start", time.time() - psutil.Process().create_time(), {}, self._usage())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the block's seconds to a phase, also if it raises. A process that ends in it loses its CPU seconds."""
        began, before = time.monotonic(), self._usage()
        try:
            yield
        finally:
            self._add(name, time.monotonic() - began, before, self._usage())

    def facts(self) -> dict[str, Any]:
        """Return the report's fields: wall seconds by phase, and CPU seconds by phase and process, from one on."""
        return {
            "seconds": {phase: round(seconds, 1) for phase, seconds in self._wall.items()},
            "cpu_seconds": {phase: self._cpu_seconds(phase) for phase in self._cpu},
        }

    def line(self, phase: str) -> str:
        """Return the seconds of a phase so far, as text."""
        cpu = ", ".join(f"{name} {seconds}" for name, seconds in self._cpu_seconds(phase).items())
        return f"{phase}: {self._wall[phase]:.0f} s; CPU-seconds: {cpu or 'none'}"

    def _cpu_seconds(self, phase: str) -> dict[str, int]:
        used = sorted(self._cpu[phase].items(), key=lambda item: -item[1])
        return {name: round(seconds) for name, seconds in used if seconds >= 1}

    def _add(self, phase: str, seconds: float, before: _Usage, after: _Usage) -> None:
        self._wall[phase] = self._wall.get(phase, 0.0) + seconds
        used = self._cpu.setdefault(phase, {})
        for process, (name, cpu) in after.items():
            used[name] = used.get(name, 0.0) + cpu - before.get(process, ("", 0.0))[1]

    def _usage(self) -> _Usage:
        names, own = self._names(), psutil.Process()
        usage: _Usage = {}
        for process in [own, *own.children(recursive=True)]:
            try:
                name = _name_of(process, names)
                # `wait` adds a child's CPU time to its parent's; a supervisor's children were counted by name before.
                fields = 4 if process.pid in names else 2
                usage[process.pid, process.create_time()] = name, sum(process.cpu_times()[:fields])
            except psutil.Error:
                continue
        return usage


def _name_of(process: psutil.Process, names: Mapping[int, str]) -> str:
    """Return the name of a process's nearest ancestor that has one, itself included; empty: none has."""
    for ancestor in (process, *process.parents()):
        if name := names.get(ancestor.pid):
            return name
    return ""
