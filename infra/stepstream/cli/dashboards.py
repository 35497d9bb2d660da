"""Define the provisioned Grafana dashboards; `stepstream schemas generate` writes infra/deploy/chart/dashboards.

ClickHouse panels read the views of docs/views only, whose names and columns are stable.
"""

from stepstream.cli.dashboard_panels import CLICKHOUSE, Dashboard, Panel, Query, Variable

_RANGE = "since = $__fromTime, until = $__toTime"
_CHOSEN = "tenant = '${tenant}' AND model = '${model}'"

PROCESSES = Dashboard(
    "stepstream-processes",
    "Stepstream: processes and stream jobs",
    (
        Panel(
            "Alerts that fire",
            "docs/alerts.md says what to do about each.",
            (Query('ALERTS{alertstate="firing", alertname=~"Stepstream.+"}'),),
            kind="table",
        ),
        Panel(
            "Processes that answer",
            "1: Prometheus reaches the process.",
            (Query('min by (process) (up{process!=""})', "{{process}}"),),
            kind="stat",
        ),
        Panel(
            "Records read",
            "Records that each job reads, redelivered ones included.",
            (Query("process:stepstream_job_records_in:rate5m", "{{process}}"),),
            unit="ops",
        ),
        Panel(
            "Lag in offsets",
            "Offsets of the input that each job has not fetched. 0: it has read all.",
            (Query("sum by (process) (stepstream_job_lag_offsets)", "{{process}}"),),
        ),
        Panel(
            "Lag in time",
            "Age of the newest record of the last batch. It keeps its value while nothing arrives.",
            (Query("max by (process) (stepstream_job_lag_seconds)", "{{process}}"),),
            unit="s",
        ),
        Panel(
            "Time of a batch, 95th percentile",
            "Time to process one batch, its transaction included.",
            (Query("process:stepstream_job_batch_seconds:p95_5m", "{{process}}"),),
            unit="s",
        ),
        Panel(
            "Dead letters",
            "Records that were invalid, by class of error, in 10 minutes.",
            (
                Query(
                    "sum by (process, error) (increase(stepstream_job_dead_letters_total[10m]))",
                    "{{process}} {{error}}",
                ),
            ),
        ),
        Panel(
            "Age of changes without a snapshot",
            "A job writes snapshots every jobs.snapshot_interval_s: 10 minutes by default.",
            (Query("max by (process) (stepstream_job_snapshot_age_seconds)", "{{process}}"),),
            unit="s",
        ),
        Panel(
            "Memory",
            "Resident memory of each process.",
            (Query('sum by (process) (process_resident_memory_bytes{process!=""})', "{{process}}"),),
            unit="bytes",
        ),
        Panel(
            "Processor time",
            "Cores that each process uses.",
            (Query('sum by (process) (rate(process_cpu_seconds_total{process!=""}[5m]))', "{{process}}"),),
        ),
    ),
)

SERVING = Dashboard(
    "stepstream-serving",
    "Stepstream: gateway and inference workers",
    (
        Panel(
            "Calls",
            "Calls of agents by result.",
            (Query("stepstream_gateway:calls:rate5m", "{{result}}"),),
            unit="ops",
        ),
        Panel(
            "Duration of a call, 95th percentile",
            "From the first byte of the agent's request to the last of the answer.",
            (Query("stepstream_gateway:call_seconds:p95_5m", "p95"),),
            unit="s",
        ),
        Panel(
            "Events without Kafka's acknowledgement",
            "They wait on the disk of the gateway.",
            (Query("sum by (instance) (stepstream_gateway_backlog)", "{{instance}}"),),
        ),
        Panel(
            "Spool",
            "Share of gateway.spool_mb. At 100 % the gateway drops its oldest events.",
            (Query("instance:stepstream_gateway_spool:share", "{{instance}}"),),
            unit="percentunit",
        ),
        Panel(
            "Events not delivered",
            "Lost, refused or unspooled events in 10 minutes: any number is a fault.",
            (
                Query(
                    'sum by (result) (increase(stepstream_gateway_events_total{result!="delivered"}[10m]))',
                    "{{result}}",
                ),
            ),
        ),
        Panel(
            "Workers by state",
            "Inference workers as the gateways see them.",
            (Query("max by (model, state) (stepstream_gateway_workers)", "{{model}} {{state}}"),),
        ),
        Panel(
            "Served version",
            "Version of each worker, and the newest one that is published.",
            (
                Query("stepstream_inference_version", "{{instance}}"),
                Query("max(stepstream_inference_newest_version)", "newest"),
            ),
        ),
        Panel(
            "Time of a swap, 95th percentile",
            "Time to load a version while serving.",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le) (rate(stepstream_inference_swap_seconds_bucket[1h])))",
                    "p95",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Tokens",
            "Tokens of prompts and responses of the workers.",
            (
                Query("sum(rate(stepstream_inference_prompt_tokens_total[5m]))", "prompt"),
                Query("sum(rate(stepstream_inference_response_tokens_total[5m]))", "response"),
            ),
            unit="ops",
        ),
        Panel(
            "OpenTelemetry requests",
            "Requests of the receiver by signal and HTTP status.",
            (Query("sum by (signal, result) (rate(stepstream_otlp_requests_total[5m]))", "{{signal}} {{result}}"),),
            unit="ops",
        ),
    ),
)

LEARNING = Dashboard(
    "stepstream-learning",
    "Stepstream: learning",
    (
        Panel(
            "Success by policy version",
            "With 95 % Wilson intervals: where they overlap, versions may be equal. docs/views/success_by_version.md.",
            (
                Query(
                    "SELECT policy_version, harness_version, agent, environment, split, outcomes, success_rate, "
                    f"wilson_low, wilson_high, reason FROM success_by_version({_RANGE}) WHERE {_CHOSEN} "
                    "ORDER BY policy_version DESC, harness_version, agent, environment, split"
                ),
            ),
            source=CLICKHOUSE,
            kind="table",
        ),
        Panel(
            "pass@k and pass^k",
            "Averages over tasks. docs/views/pass_rates.md.",
            (Query(f"SELECT * FROM pass_rates({_RANGE}) WHERE {_CHOSEN} ORDER BY policy_version, k"),),
            source=CLICKHOUSE,
            kind="table",
        ),
        Panel(
            "Tasks with the fewest successes",
            "Attempts and successes of each task and version. docs/views/task_outcomes.md.",
            (
                Query(
                    f"SELECT * FROM task_outcomes({_RANGE}) WHERE {_CHOSEN} "
                    "ORDER BY successes / attempts, attempts DESC LIMIT 100"
                ),
            ),
            source=CLICKHOUSE,
            kind="table",
        ),
        Panel(
            "Cost per success",
            "Tokens, US dollars and time of each version. docs/views/cost_per_success.md.",
            (
                Query(
                    "SELECT policy_version, harness_version, agent, split, attempts, successes, tokens_per_success, "
                    f"usd_per_success, seconds_per_success, reason FROM cost_per_success({_RANGE}) WHERE {_CHOSEN} "
                    "ORDER BY policy_version DESC, harness_version, agent, split"
                ),
            ),
            source=CLICKHOUSE,
            kind="table",
        ),
        Panel(
            "Tools against their baseline",
            "Errors and latency of each tool against the 7 days before. docs/views/tool_health.md.",
            (
                Query(
                    "SELECT tool, agent, calls, error_rate, error_rate_low, baseline_rate, p95_ms, p95_ratio, alert, "
                    f"reason FROM tool_health({_RANGE}) WHERE {_CHOSEN} ORDER BY alert DESC, error_rate DESC"
                ),
            ),
            source=CLICKHOUSE,
            kind="table",
        ),
        Panel(
            "Reward components",
            "Mean of each component by version: one that rises while another falls may be gamed. "
            "docs/views/reward_components_by_hour.md.",
            (
                Query(
                    "SELECT hour AS time, concat(agent, ' ', name, ' version ', toString(policy_version)) AS series, "
                    f"mean FROM reward_components_by_hour({_RANGE}) WHERE {_CHOSEN} AND split = 'train' ORDER BY time"
                ),
            ),
            source=CLICKHOUSE,
        ),
        Panel(
            "Staleness of what agents sampled",
            "Mean versions behind the newest checkpoint, by hour. docs/views/staleness.md.",
            (
                Query(
                    "SELECT hour AS time, concat(agent, ' ', track, ' ', split) AS series, mean "
                    f"FROM staleness({_RANGE}) WHERE {_CHOSEN} ORDER BY time"
                ),
            ),
            source=CLICKHOUSE,
        ),
        Panel(
            "Updates",
            "Updates of the learner in an hour.",
            (Query("sum by (process) (increase(stepstream_learner_updates_total[1h]))", "{{process}}"),),
        ),
        Panel(
            "Staleness of trained attempts, 95th percentile",
            "Versions between the oldest token and the version that trains.",
            (Query("process:stepstream_learner_staleness_versions:p95_1h", "{{process}}"),),
        ),
        Panel(
            "Attempts that were not trained on",
            "By reason, in an hour. docs/learner.md explains each.",
            (Query("sum by (reason) (increase(stepstream_learner_trajectories_dropped_total[1h]))", "{{reason}}"),),
        ),
        Panel(
            "Effective sample size",
            "As a share of the tokens, by the upper end of their staleness.",
            (Query("stepstream_learner_effective_share_by_staleness", "≤ {{most}}"),),
            unit="percentunit",
        ),
        Panel(
            "Figures of the last update",
            "Clip fraction, entropy, gaps and others. docs/learner.md explains each.",
            (Query("stepstream_learner_update", "{{figure}}"),),
        ),
        Panel(
            "Time of the learner",
            "Share of its time by activity.",
            (Query("sum by (activity) (rate(stepstream_learner_seconds_total[15m]))", "{{activity}}"),),
            unit="percentunit",
        ),
        Panel(
            "Reward alarms",
            "Active alarms about gamed rewards. docs/rewards.md#alarms.",
            (Query("sum(stepstream_alarms_active)", "active"),),
            kind="stat",
        ),
    ),
    variables=(
        Variable("tenant", f"SELECT DISTINCT tenant FROM success_by_version({_RANGE})"),
        Variable("model", f"SELECT DISTINCT model FROM success_by_version({_RANGE}) WHERE tenant = '${{tenant}}'"),
    ),
    since="now-7d",
)

DASHBOARDS = (PROCESSES, SERVING, LEARNING)
