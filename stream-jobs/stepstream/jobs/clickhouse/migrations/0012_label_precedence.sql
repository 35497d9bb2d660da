-- The rule by which every reader chooses one label of a trajectory (topics/label_precedence.py) as one number: the
-- revision, then the event id as text, which orders UUIDs as their bytes do. `engines.py` makes it the version of
-- ReplacingMergeTree.

ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS precedence UInt256 MATERIALIZED bitShiftLeft(toUInt256(revision), 128) + reinterpretAsUInt256(reverse(unhex(replaceAll(event_id, '-', '')))) COMMENT 'Order among the labels of a trajectory: revision, then event_id.';
ALTER TABLE trajectory_steps ADD COLUMN IF NOT EXISTS label_id String DEFAULT '' COMMENT 'event_id of the label that it is of; empty in rows of earlier releases.';
ALTER TABLE trajectory_steps ADD COLUMN IF NOT EXISTS precedence UInt256 MATERIALIZED bitShiftLeft(toUInt256(revision), 128) + reinterpretAsUInt256(reverse(unhex(replaceAll(label_id, '-', '')))) COMMENT 'As in trajectories.';
