"""Count in the worker's Prometheus metrics."""

from stepstream.core.metrics import services

REQUESTS = services.INFERENCE_REQUESTS.create()
REQUEST_SECONDS = services.INFERENCE_REQUEST_SECONDS.create()
IN_FLIGHT = services.INFERENCE_IN_FLIGHT.create()
PROMPT_TOKENS = services.INFERENCE_PROMPT_TOKENS.create()
PREFIXES = services.INFERENCE_PREFIXES.create()
RESPONSE_TOKENS = services.INFERENCE_RESPONSE_TOKENS.create()
VERSION = services.INFERENCE_VERSION.create()
NEWEST_VERSION = services.INFERENCE_NEWEST_VERSION.create()
SWAP_SECONDS = services.INFERENCE_SWAP_SECONDS.create()
REFUSED = services.INFERENCE_REFUSED.create()
FETCHES = services.INFERENCE_FETCHES.create()
