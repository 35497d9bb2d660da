"""The embedded schema registry: Confluent's REST protocol over one compacted topic.

From the bottom up: `avro_text` (one text per schema), `compatibility`, `records` (what the topic holds), `view`
(the fold over them), `writes` (what a request would append), all pure; then `reader`, `writer` and `log` (Kafka), and
`app` (HTTP).
"""
