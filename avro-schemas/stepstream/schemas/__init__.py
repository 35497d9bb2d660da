"""The Avro schemas of every event, one named type a file, and their loader."""

from stepstream.schemas.loader import SchemaError, names, schema, schema_text

__all__ = ["SchemaError", "names", "schema", "schema_text"]
