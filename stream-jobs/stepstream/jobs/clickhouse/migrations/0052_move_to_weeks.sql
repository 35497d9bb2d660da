-- Copy the rows into the tables of 0051. A row may be copied twice: the engines remove copies. Hidden rows stay behind.
-- The copies mark their hours and cohorts, which are computed again.

INSERT INTO steps (tenant, trajectory_id, step_index, finish_reason, duration_ms, first_token_ms, cost_usd, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, occurred_at, version_min, version_max, shared_tokens, prompt_tokens, response_tokens, logprob_sum, tools, error, trainable, flags, source_key, governed_by, user, group_id)
SELECT tenant, trajectory_id, step_index, finish_reason, duration_ms, first_token_ms, cost_usd, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, occurred_at, version_min, version_max, shared_tokens, prompt_tokens, response_tokens, logprob_sum, tools, error, trainable, flags, source_key, governed_by, user, group_id
FROM steps_0050
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO step_contents (tenant, trajectory_id, step_index, event_id, producer, end, usage_prompt_tokens, usage_response_tokens, occurred_at, source_event_id, parent_trajectory_id, parent_step_index, shared_step, shared_messages, messages, response, sampling, redactions, source_key, governed_by)
SELECT tenant, trajectory_id, step_index, event_id, producer, end, usage_prompt_tokens, usage_response_tokens, occurred_at, source_event_id, parent_trajectory_id, parent_step_index, shared_step, shared_messages, messages, response, sampling, redactions, source_key, governed_by
FROM step_contents_0050
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO trajectories (tenant, trajectory_id, revision, end, closed_by, complete, success, reward, reward_spec, reward_spec_version, pending, flags, trainable, prompt_tokens, response_tokens, cost_usd, labelled_by, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, label_id, opened_at, started_at, ended_at, labelled_at, version_min, version_max, parent_trajectory_id, parent_step_index, steps, sequences, errors, duration_ms, user, group_id, step.index, step.event_key, step.reward, step.return_to_go, step.tokens, call.step, call.tool, call.error, call.ms, component.step, component.name, component.kind, component.source, component.value, component.raw, component.weight, component.final)
SELECT tenant, trajectory_id, revision, end, closed_by, complete, success, reward, reward_spec, reward_spec_version, pending, flags, trainable, prompt_tokens, response_tokens, cost_usd, labelled_by, agent, model, environment, harness_version, track, split, fidelity, consent, task_id, label_id, opened_at, started_at, ended_at, labelled_at, version_min, version_max, parent_trajectory_id, parent_step_index, steps, sequences, errors, duration_ms, user, group_id, step.index, step.event_key, step.reward, step.return_to_go, step.tokens, call.step, call.tool, call.error, call.ms, component.step, component.name, component.kind, component.source, component.value, component.raw, component.weight, component.final
FROM trajectories_0050
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO feedback (tenant, trajectory_id, event_id, producer, consent, name, value, comment, demonstration, source, end, occurred_at, source_event_id, step_index, tool_call_id, user, category, retracts, last_step_index, redactions, flags, source_key, governed_by)
SELECT tenant, trajectory_id, event_id, producer, consent, name, value, comment, demonstration, source, end, occurred_at, source_event_id, step_index, tool_call_id, user, category, retracts, last_step_index, redactions, flags, source_key, governed_by
FROM feedback_0050
SETTINGS max_partitions_per_insert_block = 0;
