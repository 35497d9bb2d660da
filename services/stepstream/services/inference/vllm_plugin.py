"""Extend vLLM's server: the entry points `vllm.general_plugins` and `vllm.endpoint_plugins`.

Every process of vLLM calls `register`. The process that serves HTTP creates `ServingPlugin`, which adds
`POST /stepstream/swap` and `POST /stepstream/smoke`, and replaces the chat handler. `--additional-config` names the
version of the first weights: `{"stepstream": {"version": 3}}`.
"""

from collections.abc import Coroutine
from typing import Any

BACKEND = "stepstream"
_PACKAGE = "stepstream.services.inference"
_RECHECK_MS = 100


def register() -> None:
    """Register the weight transfer backend and patch the loader; vLLM may call this several times in a process."""
    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from stepstream.services.inference.vllm_start_check import require_every_tensor

    # With several GPUs: a worker that had no work for 1 s may miss the wake-up for the next step, and by default looks
    # again after 5 s.
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _RECHECK_MS
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, f"{_PACKAGE}.vllm_transfer", "FolderTransferEngine")
    require_every_tensor()


class ServingPlugin:
    """vLLM's `EndpointPlugin` protocol."""

    name = "stepstream"
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Add the routes, and the answer to calls that are in flight when the engine dies."""
        from vllm.v1.engine.exceptions import EngineDeadError

        app.router.add_route("/stepstream/swap", _swap, methods=["POST"])
        app.router.add_route("/stepstream/smoke", _smoke, methods=["POST"])
        app.add_exception_handler(EngineDeadError, _engine_dead)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Stamp the first version, guard requests and take over the chat handler."""
        from stepstream.services.inference.vllm_chat import RecordedChat
        from stepstream.services.inference.vllm_swap import Swapper

        version = int(args.additional_config["stepstream"]["version"])
        await engine_client.update_weight_version(str(version))
        # vLLM's sampler fails if a request asks for the logprobs of more tokens than there are.
        model = engine_client.model_config
        model.max_logprobs = min(model.max_logprobs, model.get_vocab_size())
        state.stepstream_swapper = Swapper(engine_client, args.model, version)
        state.stepstream_swapper.guard_requests()
        state.openai_serving_chat = RecordedChat.of(state.openai_serving_chat)


async def _engine_dead(request: Any, error: Exception) -> Any:
    """Answer 503 and end the server: a gateway sends the call to another worker, which it does not after vLLM's 500."""
    from starlette.responses import JSONResponse
    from vllm.entrypoints.launchers.launcher import terminate_if_errored

    state = request.app.state
    terminate_if_errored(server=state.server, engine=state.engine_client)
    return JSONResponse({"error": {"message": f"vLLM ended: {error}", "type": "service_unavailable", "code": 503}}, 503)


async def _swap(request: Any) -> Any:
    """Answer 200 with the seconds of each part, 409 if the version is refused, 500 if nothing can be served."""
    from stepstream.services.inference.vllm_swap import SwapRequest

    return await _answered(request.app.state.stepstream_swapper.swap(SwapRequest(**await request.json())))


async def _smoke(request: Any) -> Any:
    """Answer 200 if the `prompts` give finite tokens with the weights, or the loaded `adapters`; 409 if not, 500."""
    body, state = await request.json(), request.app.state
    adapters = state.openai_serving_models.lora_requests[body["adapters"]] if body["adapters"] else None
    return await _answered(state.stepstream_swapper.check_prompts(body["prompts"], adapters))


async def _answered(work: Coroutine[Any, Any, dict[str, float] | None]) -> Any:
    from starlette.responses import JSONResponse

    from stepstream.services.inference.vllm_swap import SwapFailedError, SwapRefusedError

    try:
        return JSONResponse(await work)
    except SwapRefusedError as error:
        return JSONResponse({"error": {"message": str(error)}}, 409)
    except SwapFailedError as error:
        return JSONResponse({"error": {"message": str(error)}}, 500)
