"""Find which part of a call's prompt the step before contains already."""
