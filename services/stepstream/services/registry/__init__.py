"""Serve a schema registry: Confluent's REST protocol over one compacted topic.

From top to bottom: `app` (HTTP); `log`, `writer` and `reader` (Kafka); then pure modules: `writes` (the records that a
request appends), `view` (the fold over the records), `records` (their encoding), `compatibility`, and `avro_text`
(canonical text of a schema).
"""
