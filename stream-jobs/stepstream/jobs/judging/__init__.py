"""Models that judge: how they are asked and read (`form.py`, `api.py`), and the judge of next states."""
