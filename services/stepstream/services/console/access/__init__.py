"""Decide who may use the console, and record what people do.

`gate` admits each request: `sessions` signs the cookie, `passwords` checks, `attempts` slows down guesses. `login`
answers the login form. `audit` writes each action to the log.
"""
