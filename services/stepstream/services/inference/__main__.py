"""Run an inference worker: `python -m stepstream.services.inference`."""

import asyncio
import socket
from concurrent.futures import Future

import uvicorn
import uvloop

from stepstream.config import InferenceSettings, Settings
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.http_server import ServerConfig
from stepstream.services.inference.app import App
from stepstream.services.inference.checkpoint_watcher import CheckpointWatcher
from stepstream.services.inference.engine import Engine, EngineError
from stepstream.services.inference.forward import ChatForwarder
from stepstream.services.inference.tool_parsers import TOOL_PARSERS, NoTools
from stepstream.services.inference.worker import Worker
from stepstream.services.listen import listen
from stepstream.topics.access import wait_for_access

_NO_LIMIT = 2**31 - 1
"""Length that no model reaches: the engine then applies the model's own."""


def main(settings: Settings, _stop: Stop) -> None:
    """Serve until SIGTERM, then finish the requests in flight."""
    if settings.inference.engine == "torch" and settings.inference.tool_parser not in TOOL_PARSERS:
        raise Fatal(
            f"no tool parser '{settings.inference.tool_parser}': set STEPSTREAM_INFERENCE_TOOL_PARSER to one of "
            + ", ".join(TOOL_PARSERS)
            + ", or STEPSTREAM_INFERENCE_ENGINE to vllm, which has more"
        )
    with listen(settings.inference.host, settings.inference.port, "inference") as listener:
        wait_for_access(settings.kafka, "inference")
        uvloop.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    inference = settings.inference
    worker, app = _served(inference)
    host, port = listener.getsockname()[:2]
    server = uvicorn.Server(ServerConfig(app, settings.http, loop="none", lifespan="off"))
    url = inference.url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
    watcher = CheckpointWatcher(settings, url, worker, asyncio.get_running_loop())

    def end(_: object) -> None:
        server.should_exit = True  # without its watcher a worker would serve old weights forever

    watcher.ended.add_done_callback(end)
    worker.failed.add_done_callback(end)
    watcher.start()
    try:
        await server.serve(sockets=[listener])
    finally:
        await asyncio.to_thread(watcher.stop)
        await worker.close()
    if fault := _fault_of(worker.failed, watcher.ended):
        raise fault


def _fault_of(failed: "asyncio.Future[EngineError]", ended: "Future[None]") -> Fatal | None:
    """Return the fault that ended the worker; None: it was stopped.

    Args:
        failed: done if the engine failed.
        ended: done if the watcher ended.
    """
    if failed.done():
        return Fatal(str(failed.result()))
    error = ended.exception() if ended.done() else None
    if error is None or isinstance(error, EngineError):
        return Fatal(str(error)) if error else None
    return Fatal(f"cannot follow the checkpoints: {error}; check Kafka and the schema registry")


def _served(inference: InferenceSettings) -> tuple[Worker, App]:
    """Make the worker and its application; only the torch engine, whose models are tiny, holds two sets of weights."""
    length = inference.max_model_len or _NO_LIMIT
    if inference.engine == "vllm":
        from stepstream.services.inference.vllm_engine import VllmEngine

        engine = VllmEngine(inference)
        kept = inference.max_adapters if inference.lora_rank else 0
        worker = Worker(inference.model, engine, length, tracks=inference.tracks, max_adapters=kept)
        return worker, App(worker, NoTools(), ChatForwarder(engine))
    from stepstream.services.inference.torch_engine import TorchEngine

    def new_engine() -> Engine:
        return TorchEngine(
            inference.max_batch,
            length,
            inference.threads,
            inference.device,
            drain=inference.swap == "drain",
            smoke_prompts=inference.smoke_prompts,
        )

    try:
        first = new_engine()
    except EngineError as error:
        raise Fatal(str(error)) from error
    worker = Worker(inference.model, first, length, tracks=inference.tracks, new_engine=new_engine)
    return worker, App(worker, TOOL_PARSERS[inference.tool_parser]())


if __name__ == "__main__":
    run("inference", main)
