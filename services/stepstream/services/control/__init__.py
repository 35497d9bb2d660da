"""The control plane: decide which lever to pull, how far, and when to take it back."""
