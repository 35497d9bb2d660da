-- A migration of its own: 0052 is recorded before the rows are gone.
DROP TABLE IF EXISTS steps_0050 SYNC;

DROP TABLE IF EXISTS step_contents_0050 SYNC;

DROP TABLE IF EXISTS trajectories_0050 SYNC;

DROP TABLE IF EXISTS feedback_0050 SYNC;
