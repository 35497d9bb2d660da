"""Define the provisioned Grafana dashboards; `stepstream schemas generate` writes infra/deploy/chart/dashboards.

ClickHouse panels read the views of docs/views only, whose names and columns are stable.
"""

from stepstream.cli.dashboard_panels import Dashboard, Panel, Query, Variable, chart, view_chart, view_table

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
        chart(
            "Records read",
            "Records that each job reads, redelivered ones included.",
            "process:stepstream_job_records_in:rate5m",
            "{{process}}",
            unit="ops",
        ),
        chart(
            "Lag in offsets",
            "Offsets of the input that each job has not fetched. 0: it has read all.",
            "sum by (process) (stepstream_job_lag_offsets)",
            "{{process}}",
        ),
        chart(
            "Lag in time",
            "Age of the newest record of the last batch. It keeps its value while nothing arrives.",
            "max by (process) (stepstream_job_lag_seconds)",
            "{{process}}",
            unit="s",
        ),
        chart(
            "Time of a batch, 95th percentile",
            "Time to process one batch, its transaction included.",
            "process:stepstream_job_batch_seconds:p95_5m",
            "{{process}}",
            unit="s",
        ),
        chart(
            "Dead letters",
            "Records that were invalid, by class of error, in 10 minutes.",
            "sum by (process, error) (increase(stepstream_job_dead_letters_total[10m]))",
            "{{process}} {{error}}",
        ),
        chart(
            "Age of changes without a snapshot",
            "A job writes snapshots every jobs.snapshot_interval_s: 10 minutes by default.",
            "max by (process) (stepstream_job_snapshot_age_seconds)",
            "{{process}}",
            unit="s",
        ),
        chart(
            "Memory",
            "Resident memory of each process.",
            'sum by (process) (process_resident_memory_bytes{process!=""})',
            "{{process}}",
            unit="bytes",
        ),
        chart(
            "Processor time",
            "Cores that each process uses.",
            'sum by (process) (rate(process_cpu_seconds_total{process!=""}[5m]))',
            "{{process}}",
        ),
    ),
)

SERVING = Dashboard(
    "stepstream-serving",
    "Stepstream: gateway and inference workers",
    (
        chart(
            "Calls",
            "Calls of agents by result.",
            "stepstream_gateway:calls:rate5m",
            "{{result}}",
            unit="ops",
        ),
        chart(
            "Duration of a call, 95th percentile",
            "From the first byte of the agent's request to the last of the answer.",
            "stepstream_gateway:call_seconds:p95_5m",
            "p95",
            unit="s",
        ),
        chart(
            "Events without Kafka's acknowledgement",
            "They wait on the disk of the gateway.",
            "sum by (instance) (stepstream_gateway_backlog)",
            "{{instance}}",
        ),
        chart(
            "Spool",
            "Share of gateway.spool_mb. At 100 % the gateway drops its oldest events.",
            "instance:stepstream_gateway_spool:share",
            "{{instance}}",
            unit="percentunit",
        ),
        chart(
            "Events not delivered",
            "Lost, refused or unspooled events in 10 minutes: any number is a fault.",
            'sum by (result) (increase(stepstream_gateway_events_total{result!="delivered"}[10m]))',
            "{{result}}",
        ),
        chart(
            "Workers by state",
            "Inference workers as the gateways see them.",
            "max by (model, state) (stepstream_gateway_workers)",
            "{{model}} {{state}}",
        ),
        Panel(
            "Served version",
            "Version of each worker, and the newest one that is published.",
            (
                Query("stepstream_inference_version", "{{instance}}"),
                Query("max(stepstream_inference_newest_version)", "newest"),
            ),
        ),
        chart(
            "Time of a swap, 95th percentile",
            "Time to load a version while serving.",
            "histogram_quantile(0.95, sum by (le) (rate(stepstream_inference_swap_seconds_bucket[1h])))",
            "p95",
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
        chart(
            "OpenTelemetry requests",
            "Requests of the receiver by signal and HTTP status.",
            "sum by (signal, result) (rate(stepstream_otlp_requests_total[5m]))",
            "{{signal}} {{result}}",
            unit="ops",
        ),
    ),
)

LEARNING = Dashboard(
    "stepstream-learning",
    "Stepstream: learning",
    (
        view_table(
            "Success by policy version",
            "With 95 % Wilson intervals: where they overlap, versions may be equal. docs/views/success_by_version.md.",
            "SELECT policy_version, harness_version, agent, environment, split, outcomes, success_rate, "
            f"wilson_low, wilson_high, reason FROM success_by_version({_RANGE}) WHERE {_CHOSEN} "
            "ORDER BY policy_version DESC, harness_version, agent, environment, split",
        ),
        view_table(
            "pass@k and pass^k",
            "Averages over tasks. docs/views/pass_rates.md.",
            f"SELECT * FROM pass_rates({_RANGE}) WHERE {_CHOSEN} ORDER BY policy_version, k",
        ),
        view_table(
            "Tasks with the fewest successes",
            "Attempts and successes of each task and version. docs/views/task_outcomes.md.",
            f"SELECT * FROM task_outcomes({_RANGE}) WHERE {_CHOSEN} "
            "ORDER BY successes / attempts, attempts DESC LIMIT 100",
        ),
        view_table(
            "Cost per success",
            "Tokens, US dollars and time of each version. docs/views/cost_per_success.md.",
            "SELECT policy_version, harness_version, agent, split, attempts, successes, tokens_per_success, "
            f"usd_per_success, seconds_per_success, reason FROM cost_per_success({_RANGE}) WHERE {_CHOSEN} "
            "ORDER BY policy_version DESC, harness_version, agent, split",
        ),
        view_table(
            "Tools against their baseline",
            "Errors and latency of each tool against the 7 days before. docs/views/tool_health.md.",
            "SELECT tool, agent, calls, error_rate, error_rate_low, baseline_rate, p95_ms, p95_ratio, alert, "
            f"reason FROM tool_health({_RANGE}) WHERE {_CHOSEN} ORDER BY alert DESC, error_rate DESC",
        ),
        view_chart(
            "Reward components",
            "Mean of each component by version: one that rises while another falls may be gamed. "
            "docs/views/reward_components_by_hour.md.",
            "SELECT hour AS time, concat(agent, ' ', name, ' version ', toString(policy_version)) AS series, "
            f"mean FROM reward_components_by_hour({_RANGE}) WHERE {_CHOSEN} AND split = 'train' ORDER BY time",
        ),
        view_chart(
            "Staleness of what agents sampled",
            "Mean versions behind the newest checkpoint, by hour. docs/views/staleness.md.",
            "SELECT hour AS time, concat(agent, ' ', track, ' ', split) AS series, mean "
            f"FROM staleness({_RANGE}) WHERE {_CHOSEN} ORDER BY time",
        ),
        chart(
            "Updates",
            "Updates of the learner in an hour.",
            "sum by (process) (increase(stepstream_learner_updates_total[1h]))",
            "{{process}}",
        ),
        chart(
            "Staleness of trained attempts, 95th percentile",
            "Versions between the oldest token and the version that trains.",
            "process:stepstream_learner_staleness_versions:p95_1h",
            "{{process}}",
        ),
        chart(
            "Attempts that were not trained on",
            "By reason, in an hour. docs/learner.md explains each.",
            "sum by (reason) (increase(stepstream_learner_trajectories_dropped_total[1h]))",
            "{{reason}}",
        ),
        chart(
            "Effective sample size",
            "As a share of the tokens, by the upper end of their staleness.",
            "stepstream_learner_effective_share_by_staleness",
            "≤ {{most}}",
            unit="percentunit",
        ),
        chart(
            "Figures of the last update",
            "Clip fraction, entropy, gaps and others. docs/learner.md explains each.",
            "stepstream_learner_update",
            "{{figure}}",
        ),
        chart(
            "Time of the learner",
            "Share of its time by activity.",
            "sum by (activity) (rate(stepstream_learner_seconds_total[15m]))",
            "{{activity}}",
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
