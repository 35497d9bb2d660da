"""Run a stream job: read records, fold them into state, publish the results, each record once in effect.

`runner.py` lets Faust read and commit; `processor.py` passes each batch through the job's fold (`fold.py`), its state
(`state.py`) and its outputs (`outputs.py`); `recovery.py` rebuilds state from the input topics.
"""
