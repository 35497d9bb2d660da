"""The embedded ClickHouse: chDB in one owner process, behind ClickHouse's HTTP protocol.

Every other process uses it through the ordinary `clickhouse-connect` HTTP client, exactly as it would use a real
server. `statement` and `request` read what a client asked for (pure), `codecs` packs and unpacks bodies, `engine`
owns the data folder, `sessions` keep their state, `app` is the HTTP surface.
"""
