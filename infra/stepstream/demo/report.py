"""Write the report of a run: `report.json` for programs, `report.html` with the learning curve for people."""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepstream.demo.run_stats import Rate

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 320, 48, 40, 16


@dataclass(frozen=True)
class Report:
    """Results of one run of the demo."""

    facts: dict[str, Any]
    """Fields of `report.json`."""
    curve: Sequence[tuple[int, Rate]]
    """Success by policy version, ascending."""
    target: float
    """Success rate that the run had to reach."""

    def write(self, folder: Path) -> Path:
        """Write both files and return the path of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(self.facts, indent=2) + "\n", encoding="utf-8")
        page = folder / "report.html"
        page.write_text(self._page(), encoding="utf-8")
        return page

    def _page(self) -> str:
        rows = "\n".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(_text(value))}</td></tr>"
            for name, value in self.facts.items()
        )
        return PAGE.format(style=STYLE, chart=curve_svg(self.curve, self.target), rows=rows)


def curve_svg(curve: Sequence[tuple[int, Rate]], target: float) -> str:
    """Return an SVG drawing of success by policy version, with Wilson intervals and a line at the target."""
    points = [(version, rate.value, rate.interval) for version, rate in curve if rate.value is not None]
    if not points:
        return "<p>No trajectory has a label.</p>"
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)

    def x(version: float) -> float:
        return LEFT + (version - first) / (last - first) * (WIDTH - LEFT - 16)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Success rate by policy version">']
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
    parts.append(f'<line class="target" x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(target):.1f}" y2="{y(target):.1f}"/>')
    band = [(x(v), y(i[1])) for v, _, i in points if i] + [(x(v), y(i[0])) for v, _, i in reversed(points) if i]
    parts.append(f'<polygon class="band" points="{svg_points(band)}"/>')
    parts.append(f'<polyline class="curve" points="{svg_points([(x(v), y(p)) for v, p, _ in points])}"/>')
    parts += [
        f'<text x="{x(version):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{version}</text>'
        for version in sorted({first, (first + last) // 2, last})
    ]
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">policy version</text></svg>')
    return "\n".join(parts)


def svg_points(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the coordinates of a line or an area in SVG's form."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


STYLE = """\
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2rem auto; padding: 0 1rem; }
  svg { width: 100%; height: auto; font-size: 12px; }
  svg text { fill: currentColor; }
  .grid { stroke: currentColor; opacity: .15; }
  .target { stroke: #2a8f4e; stroke-dasharray: 6 4; stroke-width: 1.5; }
  .band { fill: #3b6fd4; opacity: .18; }
  .curve { fill: none; stroke: #3b6fd4; stroke-width: 2; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8884; font-weight: normal; }
  td { font-variant-numeric: tabular-nums; word-break: break-word; }
"""
"""Style sheet of reports."""

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Stepstream: report of the demo</title>
<style>
{style}</style>
<h1>Report of the demo</h1>
<p>Success on training tasks by policy version, with 95 % Wilson intervals; the dashed line is the target.</p>
{chart}
<h2>Figures</h2>
<table>
{rows}
</table>
</html>
"""
