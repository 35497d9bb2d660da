-- Copy the rows of earlier releases into the tables of 0016. A row may be copied twice: the engines remove copies.
-- The old tables lack the step and duration of tool calls: a moved call has step 0, ms -1, and `failed` as its error.
-- A replay of `labeled-trajectories` into the store fills them in.

INSERT INTO steps (tenant, trajectory_id, step_index, source_key, governed_by, occurred_at, agent, model, environment, harness_version, track, split, fidelity, consent, user, task_id, group_id, version_min, version_max, shared_tokens, prompt_tokens, response_tokens, logprob_sum, tools, finish_reason, error, duration_ms, first_token_ms, cost_usd, trainable, flags)
SELECT tenant, trajectory_id, step_index, reinterpretAsUInt64(substring(MD5(source_event_id), 1, 8)), policy_version, occurred_at, agent, model, environment, harness_version, track, split, fidelity, consent, ifNull(user, ''), task_id, ifNull(group_id, ''), ifNull(version_min, -1), ifNull(version_max, -1), shared_tokens, prompt_tokens, response_tokens, logprob_sum, tools, finish_reason, ifNull(error, ''), duration_ms, first_token_ms, toDecimal64(cost_usd, 9), trainable, flags
FROM steps_0015
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO step_contents (tenant, trajectory_id, step_index, source_key, governed_by, occurred_at, event_id, source_event_id, producer, parent_trajectory_id, parent_step_index, end, shared_step, shared_messages, usage_prompt_tokens, usage_response_tokens, messages, response, sampling, redactions)
SELECT tenant, trajectory_id, step_index, reinterpretAsUInt64(substring(MD5(source_event_id), 1, 8)), policy_version, occurred_at, event_id, source_event_id, producer, ifNull(parent_trajectory_id, ''), ifNull(parent_step_index, -1), trajectory_end, ifNull(prompt_shared_step, -1), shared_messages, usage_prompt_tokens, usage_response_tokens, messages, response,
    concat('{"temperature":', toString(temperature), ',"top_p":', toString(top_p), ',"max_tokens":', ifNull(toString(max_tokens), 'null'), ',"seed":', ifNull(toString(seed), 'null'), '}'),
    redactions
FROM steps_0015
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO feedback (tenant, trajectory_id, source_key, governed_by, occurred_at, event_id, source_event_id, step_index, tool_call_id, producer, consent, user, name, value, category, comment, demonstration, source, retracts, end, last_step_index, redactions, flags)
SELECT tenant, trajectory_id, reinterpretAsUInt64(substring(MD5(source_event_id), 1, 8)), policy_version, occurred_at, event_id, source_event_id, ifNull(step_index, -1), ifNull(tool_call_id, ''), producer, consent, ifNull(user, ''), name, value, ifNull(category, ''), comment, demonstration, source, ifNull(retracts, ''), trajectory_end, ifNull(last_step_index, -1), redactions, flags
FROM feedback_0015
SETTINGS max_partitions_per_insert_block = 0;

-- Rows of releases that named trajectories by their id alone get the tenant of the trajectory: then an id belonged to one.
INSERT INTO closures (tenant, trajectory_id, event_id, occurred_at, reason, last_step_index, job, components)
SELECT if(c.tenant = '', t.tenant, c.tenant), c.trajectory_id, event_id, occurred_at, reason, last_step_index, job, components
FROM closures_0015 AS c
LEFT ANY JOIN (SELECT trajectory_id, any(tenant) AS tenant FROM trajectories_0015 GROUP BY trajectory_id) AS t ON t.trajectory_id = c.trajectory_id
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO curation (tenant, trajectory_id, event_id, occurred_at, action, reason, by)
SELECT if(c.tenant = '', t.tenant, c.tenant), c.trajectory_id, event_id, occurred_at, action, reason, by
FROM curation_0015 AS c
LEFT ANY JOIN (SELECT trajectory_id, any(tenant) AS tenant FROM trajectories_0015 GROUP BY trajectory_id) AS t ON t.trajectory_id = c.trajectory_id
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO governance_audit (tenant, trajectory_id, event_id, occurred_at, source_topic, source_event_id, policy_version, action, found, job)
SELECT tenant, trajectory_id, event_id, occurred_at, source_topic, source_event_id, policy_version, action, found, job
FROM governance_audit_0015
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO training_decisions (tenant, trajectory_id, event_id, occurred_at, revision, group_id, model, root, outcome, reason, learner_version, staleness, update, checkpoint_version, trained_revision, partition, offset, job)
SELECT tenant, trajectory_id, event_id, occurred_at, revision, ifNull(group_id, ''), model, root, outcome, reason, learner_version, staleness, update, checkpoint_version, trained_revision, partition, offset, job
FROM training_decisions_0015
SETTINGS max_partitions_per_insert_block = 0;

INSERT INTO trajectories (tenant, trajectory_id, revision, label_id, opened_at, started_at, ended_at, labelled_at, agent, model, environment, harness_version, track, split, fidelity, consent, user, task_id, group_id, version_min, version_max, parent_trajectory_id, parent_step_index, end, closed_by, complete, success, reward, reward_spec, reward_spec_version, pending, flags, trainable, steps, sequences, errors, prompt_tokens, response_tokens, cost_usd, duration_ms, labelled_by, `step.index`, `step.event_key`, `step.reward`, `step.return_to_go`, `step.tokens`, `call.step`, `call.tool`, `call.error`, `call.ms`, `component.step`, `component.name`, `component.kind`, `component.source`, `component.value`, `component.raw`, `component.weight`, `component.final`)
SELECT t.tenant, t.trajectory_id, t.revision, event_id, started_at, started_at, ended_at, occurred_at, agent, model, environment, harness_version, track, split, fidelity, consent, ifNull(user, ''), task_id, ifNull(group_id, ''), ifNull(version_min, -1), ifNull(version_max, -1), ifNull(parent_trajectory_id, ''), ifNull(parent_step_index, -1), trajectory_end, closed_by, complete, success, reward, reward_spec, reward_spec_version, pending, flags, trainable, steps, sequences,
    arrayCount(step -> step.6, s.labelled), prompt_tokens, response_tokens, toDecimal64(cost_usd, 9),
    arraySum(step -> step.7, s.labelled), labelled_by,
    s.labelled.1, s.labelled.2, s.labelled.3, s.labelled.4, s.labelled.5,
    arrayMap(call -> 0, calls.1), calls.1, calls.2, arrayMap(call -> -1, calls.1),
    c.paid.1, c.paid.2, c.paid.3, c.paid.4, c.paid.5, c.paid.6, c.paid.7, c.paid.8
FROM
(
    SELECT *, arrayFlatten(arrayMap(
        (tool, count) -> arrayMap(n -> (tool, if(n < tool_errors[tool], 'failed', '')), range(toUInt32(count))),
        mapKeys(tool_calls), mapValues(tool_calls))) AS calls
    FROM trajectories_0015 FINAL
) AS t
LEFT ANY JOIN
(
    SELECT r.trajectory_id AS trajectory_id, r.revision AS revision, if(r.tenant = '', o.tenant, r.tenant) AS tenant,
        arraySort(groupArray((toUInt32(step_index), reinterpretAsUInt32(substring(MD5(event_id), 1, 4)), reward, return_to_go, response_tokens, error IS NOT NULL, ifNull(duration_ms, 0)))) AS labelled
    FROM (SELECT * FROM trajectory_steps_0015 FINAL) AS r
    LEFT ANY JOIN (SELECT trajectory_id, any(tenant) AS tenant FROM trajectories_0015 GROUP BY trajectory_id) AS o ON o.trajectory_id = r.trajectory_id
    GROUP BY trajectory_id, revision, tenant
) AS s ON s.tenant = t.tenant AND s.trajectory_id = t.trajectory_id AND s.revision = t.revision
LEFT ANY JOIN
(
    SELECT tenant, trajectory_id, label_id,
        arraySort(groupArray((toUInt32(step_index), name, kind, source, value, raw_value, weight, final))) AS paid
    FROM reward_components_0015 FINAL
    GROUP BY tenant, trajectory_id, label_id
) AS c ON c.tenant = t.tenant AND c.trajectory_id = t.trajectory_id AND c.label_id = t.event_id
SETTINGS max_partitions_per_insert_block = 0;
