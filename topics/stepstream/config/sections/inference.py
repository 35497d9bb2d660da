"""What generates the agents' replies."""

from typing import Literal

from pydantic import Field

from stepstream.config.sections.base import Port, Section


class Inference(Section):
    """An inference worker."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="Port to listen on.")
    worker_id: str = Field("worker-0", description="Name on the worker-status topic.")
    engine: Literal["torch", "vllm"] = Field("torch", description="Engine that generates.")
    model: str = Field("demo", description="Name of the model to serve, as on the checkpoints topic.")
    tool_parser: str = Field(
        "call_line", description="How the model writes tool calls: call_line, call_json, or none for plain text."
    )
    max_batch: int = Field(128, ge=1, description="Sequences decoded together (torch engine).")
    max_model_len: int = Field(512, ge=16, description="Longest context in tokens.")
    threads: int = Field(1, ge=1, description="CPU threads of the engine.")
    status_every_s: float = Field(2.0, gt=0, description="Seconds between status events without a change.")
    vllm_port: int = Field(0, ge=0, le=65535, description="Port of the vLLM server behind this worker; 0: a free one.")
    vllm_args: list[str] = Field([], description="More arguments for vLLM's server.")
