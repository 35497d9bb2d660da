-- Views group by these instead of long names, of which they return the family only: 8 bytes a task and a group.
ALTER TABLE task_hours ADD COLUMN IF NOT EXISTS task_family LowCardinality(String) MATERIALIZED substring(task_id, 1, length(task_id) - multiSearchFirstPosition(reverse(task_id), ['/', ':', '#'])) COMMENT 'task_id up to its last separator.';
ALTER TABLE task_hours ADD COLUMN IF NOT EXISTS task_key UInt64 MATERIALIZED sipHash64(task_id) CODEC(NONE);
ALTER TABLE task_hours ADD COLUMN IF NOT EXISTS group_key UInt64 MATERIALIZED if(group_id = '', 0, sipHash64(group_id)) CODEC(NONE) COMMENT '0: no group.';

-- Parts of earlier releases get them too; until then, and if it is repeated, the values are the same.
ALTER TABLE task_hours MATERIALIZE COLUMN task_family;
ALTER TABLE task_hours MATERIALIZE COLUMN task_key;
ALTER TABLE task_hours MATERIALIZE COLUMN group_key;
