"""Run the whole loop on the embedded stack until held-out success passes a target, and report what was measured."""
