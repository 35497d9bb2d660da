"""Write the report of a run: figures and decisions for programs, a page with each decision for people."""

import html
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepstream.demo.control.production import Point
from stepstream.demo.control.run import Result
from stepstream.demo.control.scoring import Verdict
from stepstream.demo.control.timeline import BAD, NAMES, Occurrence
from stepstream.demo.report import BOTTOM, HEIGHT, LEFT, STYLE, TOP, WIDTH, svg_points
from stepstream.topics.events import Decision

_RIGHT = 16


@dataclass(frozen=True)
class ControlReport:
    """Results of one run."""

    result: Result
    seed: int
    seconds: float
    """Length of the whole run."""

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of `report.json`."""
        result, score = self.result, self.result.score
        kinds = [one.kind for one in result.occurrences]
        return {
            "right_levers": score.right_levers,
            "undone": score.undone,
            "false_actions": len(score.false_actions),
            **result.before.facts("success_before"),
            **result.after.facts("success_after"),
            "events": len(score.verdicts),
            "bad_events": sum(kind in BAD for kind in kinds),
            "order": kinds,
            "delays_s": {one.occurrence.kind: _rounded(one.delay_s) for one in score.verdicts},
            "decisions": len(result.decisions),
            "holds": len(result.holds),
            "seed": self.seed,
            "minutes": round(self.seconds / 60, 2),
        }

    def write(self, folder: Path) -> Path:
        """Write `report.json`, `decisions.jsonl` (with the holds) and `report.html`; return the path of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        decisions = sorted([*self.result.decisions, *self.result.holds], key=lambda one: one["occurred_at_us"])
        lines = [{**one, "state": self.result.states.get(one["event_id"], "")} for one in decisions]
        (folder / "decisions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        page = folder / "report.html"
        page.write_text(self._page(), encoding="utf-8")
        return page

    def _page(self) -> str:
        result = self.result
        verdicts = {one.occurrence: one for one in result.score.verdicts}
        false = {one["event_id"] for one in result.score.false_actions}
        answers = {one.decision["event_id"]: one for one in verdicts.values() if one.decision is not None}
        return PAGE.format(
            style=STYLE,
            chart=timeline_svg(result.curve, result.occurrences),
            events="\n".join(_event_row(one, verdicts.get(one)) for one in result.occurrences),
            decisions="\n".join(_decision_row(one, result.states, answers, false) for one in result.decisions),
            holds=len(result.holds),
            figures="\n".join(_row(name, _text(value)) for name, value in self.facts.items()),
        )


def timeline_svg(curve: Sequence[Point], occurrences: Sequence[Occurrence]) -> str:
    """Return an SVG drawing of success over time, with Wilson intervals and a line at each event."""
    found = [(one.at_us, one.rate.value, one.rate.interval) for one in curve if one.rate.value is not None]
    if not found:
        return "<p>No trajectory has a label.</p>"
    first, last = found[0][0], max(found[-1][0], found[0][0] + 1)

    def x(at_us: float) -> float:
        return LEFT + (at_us - first) / (last - first) * (WIDTH - LEFT - _RIGHT)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Success over time">']
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
    for number, one in enumerate(occurrences):
        at = x(one.began_us)
        parts.append(f'<line class="target" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{y(0):.1f}"/>')
        height = y(0) + 16 + 14 * (number % 2)
        parts.append(f'<text x="{at:.1f}" y="{height:.1f}">{html.escape(NAMES[one.kind])}</text>')
    band = [(x(v), y(i[1])) for v, _, i in found if i] + [(x(v), y(i[0])) for v, _, i in reversed(found) if i]
    parts.append(f'<polygon class="band" points="{svg_points(band)}"/>')
    parts.append(f'<polyline class="curve" points="{svg_points([(x(v), y(p)) for v, p, _ in found])}"/></svg>')
    return "\n".join(parts)


def _event_row(one: Occurrence, verdict: Verdict | None) -> str:
    if verdict is None:
        answer, delay = "", ""
    elif verdict.decision is None:
        answer, delay = "no right answer", ""
    else:
        answer, delay = _pull(verdict.decision), f"{verdict.delay_s:.1f} s"
    name = NAMES[one.kind] + (f" ({one.subject})" if one.subject else "")
    return _row(_clock(one.began_us), name, answer, delay)


def _decision_row(one: Decision, states: Mapping[str, str], answers: Mapping[str, Verdict], false: Set[str]) -> str:
    verdict = answers.get(one["event_id"])
    state = states[one["event_id"]] or "awaiting"
    figures = "; ".join(_evidence(each) for each in one["evidence"])
    lost = "; ".join(f"{each['rule']}: {each['reason']}" for each in one["lost"])
    if verdict is not None:
        delay = f"{verdict.delay_s:.1f} s after: {NAMES[verdict.occurrence.kind]}"
    else:
        delay = "nothing called for it" if one["event_id"] in false else ""
    why = f"{one['reason']} ({one['rule']})"
    return _row(_clock(one["occurred_at_us"]), _pull(one), why, figures, delay, state, lost, one["undo"])


def _evidence(figure: Any) -> str:
    if figure["value"] is None:
        return f"{figure['name']}: {figure['reason']}"
    interval = "" if figure["low"] is None else f" ({figure['low']:.3g} to {figure['high']:.3g})"
    count = f", n={figure['n']}" if figure["n"] else ""
    return f"{figure['name']} {figure['value']:.3g}{interval}{count}"


def _pull(decision: Decision) -> str:
    return f"{decision['action']} {decision['lever'] or ''} {decision['target']}".strip()


def _clock(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%H:%M:%S")


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Stepstream: report of the control plane's demo</title>
<style>{style}  body {{ max-width: 1100px; }}</style>
<h1>Report of the control plane's demo</h1>
<p>Success of the agent in production by time (UTC), with 95 % Wilson intervals. The dashed lines are the events.</p>
{chart}
<h2>What happened</h2>
<table>
<tr><th>time</th><th>event</th><th>answer</th><th>delay</th></tr>
{events}
</table>
<h2>Decisions</h2>
<p>The control plane also decided {holds} times to hold.</p>
<table>
<tr><th>time</th><th>decision</th><th>reason</th><th>evidence</th><th>delay</th><th>state</th><th>lost</th><th>undo</th></tr>
{decisions}
</table>
<h2>Figures</h2>
<table>
{figures}
</table>
</html>
"""
