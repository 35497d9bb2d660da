"""Send events at least once: append each to a local spool, send in order, delete on acknowledgement."""
