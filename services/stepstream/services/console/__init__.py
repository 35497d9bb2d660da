"""Serve the console: a web application over the data in ClickHouse.

`app` admits requests (`access`) and answers them: the page in `static/`, the endpoints of `api`, and an event
stream of the tables that changed (`live`). `store` runs the queries, once a second for any number of browsers. The
templates' and charts' libraries are copied from npm, under their own licences (docs/decisions/console.md).
"""
