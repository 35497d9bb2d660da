"""Search trajectories, show one, compare two, and explain whether a learner trained on one.

`search` finds trajectories, `timeline` reads the steps of one, `tree` its sub-agents, `tokens` its tokens from the log.
`compare` finds the first difference of two attempts. `facts` and `status` explain what became of a trajectory, for the
page and for `stepstream explain`.
"""
