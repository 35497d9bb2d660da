"""Let a language model judge responses: the judge of next states, the verifier `judge`, and their calibration."""
