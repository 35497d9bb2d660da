"""Serve the console: one page with live charts of the data in ClickHouse.

`app` serves the page in `static/` and its data. `board` runs the queries of `queries`, at most once a second for any
number of browsers. The page includes its charting library (uPlot, under its own licence).
"""
