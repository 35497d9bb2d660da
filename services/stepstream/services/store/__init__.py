"""Serve ClickHouse's HTTP protocol with chDB, in one process that owns the data folder.

Every other process uses it through the ordinary `clickhouse-connect` HTTP client, like a real server. `app` serves
HTTP, `run` runs statements, `sessions` keeps connections between requests, `engine` owns the data folder, `body` and
`codecs` read and compress bodies, and `request` and `statement` parse requests (pure).
"""
