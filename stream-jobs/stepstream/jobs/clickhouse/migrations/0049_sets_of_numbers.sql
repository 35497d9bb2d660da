-- Statements of an erasure look numbers up in tables of the engine `Set` (clickhouse/number_sets.py).
DROP TABLE IF EXISTS erased_keys SYNC;
