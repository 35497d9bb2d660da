"""Define the metrics of workers, registry, store, console, fleet, followed tables and the supervisor."""

from stepstream.core.metrics.definition import CounterMetric, GaugeMetric, HistogramMetric

INFERENCE_REQUESTS = CounterMetric(
    "stepstream_inference_requests_total", "requests", "Chat requests answered, by HTTP status.", ("status",)
)
INFERENCE_REQUEST_SECONDS = HistogramMetric(
    "stepstream_inference_request_seconds",
    "seconds",
    "Time from a chat request to the end of its reply.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
INFERENCE_IN_FLIGHT = GaugeMetric("stepstream_inference_in_flight", "requests", "Chat requests being served.")
INFERENCE_PROMPT_TOKENS = CounterMetric(
    "stepstream_inference_prompt_tokens_total", "tokens", "Prompt tokens of answered requests."
)
INFERENCE_PREFIXES = CounterMetric(
    "stepstream_inference_prefixes_total",
    "prompts",
    "Prompts with recorded ids, by how they continue them; way none: a new sequence, for the reason.",
    ("model", "way", "reason"),
)
INFERENCE_RESPONSE_TOKENS = CounterMetric(
    "stepstream_inference_response_tokens_total", "tokens", "Response tokens sampled."
)
INFERENCE_VERSION = GaugeMetric("stepstream_inference_version", "version", "Version of the served weights.")
INFERENCE_NEWEST_VERSION = GaugeMetric(
    "stepstream_inference_newest_version", "version", "Newest version on the topic of checkpoints."
)
INFERENCE_SWAP_SECONDS = HistogramMetric(
    "stepstream_inference_swap_seconds",
    "seconds",
    "Time to load a checkpoint while serving.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60),
)
INFERENCE_REFUSED = CounterMetric(
    "stepstream_inference_refused_checkpoints_total", "checkpoints", "Checkpoints that failed their checks."
)
INFERENCE_FETCHES = CounterMetric(
    "stepstream_inference_fetches_total",
    "versions",
    "Versions fetched, by way (memory, files) and reason for files; docs/versions.md lists the reasons.",
    ("way", "reason"),
)
INFERENCE = (
    INFERENCE_REQUESTS, INFERENCE_REQUEST_SECONDS, INFERENCE_IN_FLIGHT, INFERENCE_PROMPT_TOKENS, INFERENCE_PREFIXES,
    INFERENCE_RESPONSE_TOKENS, INFERENCE_VERSION, INFERENCE_NEWEST_VERSION, INFERENCE_SWAP_SECONDS, INFERENCE_REFUSED,
    INFERENCE_FETCHES,
)  # fmt: skip

REGISTRY_ANSWERS = CounterMetric(
    "stepstream_registry_answers_total", "requests", "Requests answered, by method and status.", ("method", "status")
)
REGISTRY_SKIPPED = CounterMetric(
    "stepstream_registry_records_skipped_total", "records", "Unreadable records of the schemas topic."
)
REGISTRY_SCHEMAS = GaugeMetric("stepstream_registry_schemas", "schemas", "Schemas with an id.")
REGISTRY_OFFSET = GaugeMetric(
    "stepstream_registry_offset", "offset", "Offset up to which the schemas topic has been read."
)
REGISTRY_WRITE_RETRIES = CounterMetric(
    "stepstream_registry_write_retries_total",
    "writes",
    "Writes that were decided again, usually because another instance wrote first.",
)
REGISTRY = (REGISTRY_ANSWERS, REGISTRY_SKIPPED, REGISTRY_SCHEMAS, REGISTRY_OFFSET, REGISTRY_WRITE_RETRIES)

STORE_QUERIES = CounterMetric(
    "stepstream_store_queries_total", "requests", "Requests with a statement.", ("kind", "outcome")
)
STORE_QUERY_SECONDS = HistogramMetric(
    "stepstream_store_query_seconds",
    "seconds",
    "Time until a statement's reply began.",
    ("kind",),
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
)
STORE_ROWS = CounterMetric("stepstream_store_inserted_rows_total", "rows", "Rows acknowledged.")
STORE_RUNNING = GaugeMetric("stepstream_store_running", "statements", "Statements in progress.")
STORE_SESSIONS = GaugeMetric("stepstream_store_sessions", "sessions", "Open sessions.")
STORE = (STORE_QUERIES, STORE_QUERY_SECONDS, STORE_ROWS, STORE_RUNNING, STORE_SESSIONS)

CONSOLE_ANSWERS = CounterMetric(
    "stepstream_console_answers_total", "answers", "Answers of the console's endpoints.", ("path", "outcome")
)
CONSOLE = (CONSOLE_ANSWERS,)

FLEET_TRAJECTORIES = CounterMetric(
    "stepstream_fleet_trajectories_total", "attempts", "Attempts that ended.", ("split", "status")
)
FLEET_SUCCESSES = CounterMetric("stepstream_fleet_successes_total", "attempts", "Attempts that succeeded.", ("split",))
FLEET_STEPS = CounterMetric("stepstream_fleet_steps_total", "calls", "Model calls that were answered.")
FLEET_RUNNING = GaugeMetric("stepstream_fleet_running", "attempts", "Attempts in flight.")
FLEET_HELD_BACK = GaugeMetric("stepstream_fleet_held_back", "0 or 1", "1 while agents wait for the learner, else 0.")
FLEET_PASSED_OVER = CounterMetric(
    "stepstream_fleet_tasks_passed_over_total",
    "draws",
    "Draws of tasks that were skipped, because their last groups gave the learner no gradient.",
)
FLEET_DRAWS = CounterMetric(
    "stepstream_fleet_tasks_drawn_total", "tasks", "Tasks that groups attempted, by family.", ("family",)
)
FLEET_MIX_COLLAPSED = GaugeMetric(
    "stepstream_fleet_task_mix_collapsed",
    "0 or 1",
    "1 while 90 % of the newest 200 drawn tasks are of one family, though the environment has others.",
)
FLEET_LINEAGE_VERSIONS = GaugeMetric(
    "stepstream_fleet_lineage_versions", "versions", "Versions published since the root of the lineage."
)
FLEET = (
    FLEET_TRAJECTORIES, FLEET_SUCCESSES, FLEET_STEPS, FLEET_RUNNING, FLEET_HELD_BACK, FLEET_PASSED_OVER,
    FLEET_DRAWS, FLEET_MIX_COLLAPSED, FLEET_LINEAGE_VERSIONS,
)  # fmt: skip

CONTROL_LEADER = GaugeMetric("stepstream_control_leader", "0 or 1", "1 while this controller acts, 0 while it waits.")
CONTROL_SCOPES = GaugeMetric(
    "stepstream_control_scopes", "scopes", "Agents and models that a control policy covers and that have traffic."
)
CONTROL_DECISIONS = CounterMetric(
    "stepstream_control_decisions_total", "decisions", "Decisions published.", ("action", "lever")
)
CONTROL_ACTS = CounterMetric(
    "stepstream_control_acts_total", "acts", "Ends of decisions and begins of searches, by state.", ("state",)
)
CONTROL_AWAITING = GaugeMetric("stepstream_control_awaiting", "decisions", "Decisions that wait for people.")
CONTROL_CYCLE_SECONDS = HistogramMetric(
    "stepstream_control_cycle_seconds",
    "seconds",
    "Time to decide once for all scopes.",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
)
CONTROL_FAILED_CYCLES = CounterMetric(
    "stepstream_control_failed_cycles_total", "cycles", "Cycles without a decision, because the store or Kafka failed."
)
CONTROL_WEBHOOK_MESSAGES = CounterMetric(
    "stepstream_control_webhook_messages_total",
    "messages",
    "Messages to the webhook, by result: delivered, refused, given_up or dropped.",
    ("result",),
)
CONTROL_SEARCHING = GaugeMetric(
    "stepstream_control_searching", "0 or 1", "1 while a search for a harness version to propose runs, else 0."
)
CONTROL_SEARCHES = CounterMetric(
    "stepstream_control_searches_total",
    "searches",
    "Ended searches, by result: proposed, nothing (no gain is confirmed) or failed.",
    ("result",),
)
CONTROL_SEARCH_CALLS = CounterMetric(
    "stepstream_control_search_calls_total", "calls", "Model calls of searches that ended by themselves."
)
CONTROL_SEARCH_TOKENS = CounterMetric(
    "stepstream_control_search_tokens_total", "tokens", "Tokens of searches that ended by themselves."
)
CONTROL = (
    CONTROL_LEADER, CONTROL_SCOPES, CONTROL_DECISIONS, CONTROL_ACTS, CONTROL_AWAITING, CONTROL_CYCLE_SECONDS,
    CONTROL_FAILED_CYCLES, CONTROL_WEBHOOK_MESSAGES, CONTROL_SEARCHING, CONTROL_SEARCHES, CONTROL_SEARCH_CALLS,
    CONTROL_SEARCH_TOKENS,
)  # fmt: skip

TABLE_FAULTY = GaugeMetric(
    "stepstream_table_faulty",
    "0 or 1",
    "1 while rows of a followed topic may be older than the topic; see the log.",
    ("topic",),
)
TABLES = (TABLE_FAULTY,)

PROCESS_UP = GaugeMetric(
    "stepstream_stack_process_up", "0 or 1", "1 while a process runs, 0 after it failed or ended.", ("process",)
)
RESTARTS = CounterMetric("stepstream_stack_restarts_total", "restarts", "Restarts of crashed processes.", ("process",))
FAILURES = CounterMetric(
    "stepstream_stack_failures_total", "failures", "Times that a process could not be kept running.", ("process",)
)
SUPERVISOR = (PROCESS_UP, RESTARTS, FAILURES)
