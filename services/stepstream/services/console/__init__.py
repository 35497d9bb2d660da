"""The console: one page with live charts of what ClickHouse holds.

`queries` are the questions, `board` asks them at most once a second however many browsers look on, `app` serves the
answers and the page in `static/`, which brings its charting library along (uPlot, under its own licence).
"""
