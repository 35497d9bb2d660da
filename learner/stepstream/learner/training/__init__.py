"""Update the weights from the chosen groups."""
