"""Verify closed trajectories by rule, test or model.

`specification` reads the verification file, `cases` selects the cases, `pool` runs verifiers on them, and `fold`
publishes their verdicts. `registry` creates verifiers by name.
"""
