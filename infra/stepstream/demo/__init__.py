"""The demonstration: the whole loop on the embedded stack, watched until the policy is clearly better."""
