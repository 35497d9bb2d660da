"""Define the worker's Prometheus metrics."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("stepstream_inference_requests", "Chat requests answered, by HTTP status.", ["status"])
REQUEST_SECONDS = Histogram(
    "stepstream_inference_request_seconds",
    "Seconds from a chat request to the end of its reply.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
IN_FLIGHT = Gauge("stepstream_inference_in_flight", "Chat requests being served.")
PROMPT_TOKENS = Counter("stepstream_inference_prompt_tokens", "Prompt tokens of answered requests.")
PREFIXES = Counter(
    "stepstream_inference_prefixes",
    "Prompts with recorded ids, by how they continue them; way none: a new sequence, for the reason.",
    ["model", "way", "reason"],
)
RESPONSE_TOKENS = Counter("stepstream_inference_response_tokens", "Response tokens sampled.")
VERSION = Gauge("stepstream_inference_version", "Version of the served weights.")
NEWEST_VERSION = Gauge("stepstream_inference_newest_version", "Newest version on the topic of checkpoints.")
SWAP_SECONDS = Histogram(
    "stepstream_inference_swap_seconds",
    "Seconds to load a checkpoint while serving.",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60),
)
REFUSED = Counter("stepstream_inference_refused_checkpoints", "Checkpoints that failed their checks.")
FETCHES = Counter(
    "stepstream_inference_fetches",
    "Versions fetched, by way (memory, files) and reason for files; docs/versions.md lists the reasons.",
    ["way", "reason"],
)
