-- Rows that are inserted again have their times again, also if these were deleted since: times do not count twice.
ALTER TABLE trajectory_times MODIFY SETTING non_replicated_deduplication_window = 0;
