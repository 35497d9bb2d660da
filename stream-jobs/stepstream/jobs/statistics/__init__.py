"""Statistics of cohorts and of reward components, and the alarms that follow from them."""
