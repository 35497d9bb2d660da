"""The decision function of the control plane: `decide.decide(snapshot, history, policy)`. Pure: no clock, no I/O."""
