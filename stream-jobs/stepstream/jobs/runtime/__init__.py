"""What runs a job: records in, outputs and state out, each record once in effect.

`runner.py` has Faust read and commit; `folding.py` puts a batch through a fold (`fold_job.py`) with its state
(`state.py`) and what it gives (`outputs.py`, `publisher.py`); `recovery.py` rebuilds state from the log.
"""
