"""Check what of a model will work in serving and learning; the command is `stepstream models check`."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepstream.config import LearnerSettings
from stepstream.learner.model.memory_plan import plan_memory
from stepstream.learner.model.model_shape import shape_of
from stepstream.learner.model.pretrained import CannotTrain, config_of
from stepstream.services.inference.chat_tokenizer import ChatTokenizer, TemplateError
from stepstream.services.inference.engine import CheckpointRefusedError, malformed_as_refused
from stepstream.services.inference.llama import LlamaShape
from stepstream.services.inference.template_check import (
    CITY,
    TOOLS,
    Finding,
    check_generation_config,
    check_template,
    written_call,
)
from stepstream.services.inference.tool_parsers import TOOL_PARSERS
from stepstream.services.inference.weight_files import read_weights
from stepstream.versions.layout import weights_folder

_DTYPE_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_LORA_RANK = 16
_PREFERRED_PARSERS = ("hermes", "llama3_json", "mistral", "pythonic")


def check_model(path: Path, *, parsers: bool) -> list[Finding]:
    """Return all findings about the model in `path`, or in its `weights/` if it is a published version."""
    folder = weights_folder(path)
    findings = [_learner(folder), _torch_engine(folder), *_weights(folder)]
    try:
        tokenizer = ChatTokenizer(folder)
    except CheckpointRefusedError as error:
        return [*findings, Finding("template", "fault", str(error))]
    findings += [*check_template(tokenizer), check_generation_config(folder), _vocabulary(folder, tokenizer)]
    if parsers:
        findings.append(check_parsers(folder, tokenizer))
    return findings


def _learner(folder: Path) -> Finding:
    if _needs_code(folder):
        return Finding("learner", "fault", "the model needs Python code from its folder, which is not run")
    try:
        known = config_of(folder)
    except CannotTrain as error:
        return Finding("learner", "fault", str(error))
    caps = [name for name in ("attn_logit_softcapping", "final_logit_softcapping") if getattr(known, name, None)]
    if "attn_logit_softcapping" in caps:
        return Finding("learner", "note", f"{known.model_type} caps its attention: trained with slower eager attention")
    more = f" with {caps[0]}" if caps else ""
    return Finding("learner", "ok", f"{known.model_type}{more}, {known.max_position_embeddings} tokens")


def _needs_code(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "config.json").read_bytes()).get("auto_map"))
    except (OSError, ValueError, AttributeError):
        return False


def _torch_engine(folder: Path) -> Finding:
    try:
        with malformed_as_refused(folder):
            LlamaShape.read(folder)
    except CheckpointRefusedError as error:
        return Finding("torch engine", "note", str(error))
    return Finding("torch engine", "ok", "runs this architecture, as vLLM does")


def _weights(folder: Path) -> Iterator[Finding]:
    try:
        entries = read_weights(folder)
    except CheckpointRefusedError as error:
        yield Finding("weights", "fault", str(error))
        return
    files = len({entry.file for entry in entries.values()})
    dtypes = sorted({entry.dtype for entry in entries.values()})
    unknown = [dtype for dtype in dtypes if dtype not in _DTYPE_BYTES]
    if unknown:
        yield Finding("weights", "fault", f"tensors in {', '.join(unknown)}: give the model in bfloat16 or float32")
        return
    sizes = {name: entry.end - entry.start for name, entry in entries.items()}
    count = sum(size // _DTYPE_BYTES[entries[name].dtype] for name, size in sizes.items())
    form = f"{files} shards" if files > 1 else "one file"
    yield Finding("weights", "ok", f"{count:,} parameters in {', '.join(dtypes)}, {form}")
    yield Finding("memory", "ok", f"serving {_gib(sum(sizes.values()))} and a cache; {_training_memory(folder)}")


def _training_memory(folder: Path) -> str:
    """Return what one GPU needs for training, in full and with adapters."""
    needs = []
    for name, rank in (("in full", 0), (f"with adapters of rank {_LORA_RANK}", _LORA_RANK)):
        config = LearnerSettings(device="cuda", precision="bfloat16", lora_rank=rank)
        try:
            needs.append(f"{_gib(plan_memory(shape_of(folder, config), config, 1).gpu_total)} {name}")
        except CannotTrain:
            return "it cannot be trained"
    return f"training on one GPU {', '.join(needs)} (stepstream plan-memory: more GPUs, settings)"


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _vocabulary(folder: Path, tokenizer: ChatTokenizer) -> Finding:
    config = json.loads((folder / "config.json").read_bytes())
    known, size = config.get("vocab_size"), tokenizer.size
    if isinstance(known, int) and size > known:
        return Finding("vocabulary", "fault", f"the tokenizer has {size} tokens, the model {known}")
    return Finding("vocabulary", "ok", f"{size} tokens")


def check_parsers(folder: Path, tokenizer: ChatTokenizer) -> Finding:
    """Parse a call that the template wrote with each parser of the torch engine and of vLLM."""
    try:
        text = written_call(tokenizer).split("</think>")[-1].strip()
    except TemplateError as error:
        return Finding("tool parser", "fault", f"the template writes no call: {error}")
    name = TOOLS[0]["function"]["name"]
    own = [
        each for each, parser in TOOL_PARSERS.items() if (call := parser().parse(text, [name])) and call.name == name
    ]
    fitting = [f"{each} (torch engine)" for each in own] + [f"{each} (vLLM)" for each in _vllm_parsers(folder, text)]
    if fitting:
        return Finding("tool parser", "ok", f"reads the template's calls: {', '.join(fitting)}")
    if importlib.util.find_spec("vllm") is None:
        return Finding("tool parser", "note", "vLLM is not installed: its parsers were not tried")
    return Finding("tool parser", "fault", f"no parser reads the call that the template writes: {text!r}")


def _vllm_parsers(folder: Path, text: str) -> list[str]:
    if importlib.util.find_spec("vllm") is None:
        return []
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    request = ChatCompletionRequest(model="check", messages=[{"role": "user", "content": "?"}], tools=TOOLS)
    names = ToolParserManager.list_registered()
    order = [*(name for name in _PREFERRED_PARSERS if name in names), *sorted(set(names) - set(_PREFERRED_PARSERS))]
    return [name for name in order if _reads(ToolParserManager, name, tokenizer, text, request)]


def _reads(manager: Any, name: str, tokenizer: Any, text: str, request: Any) -> bool:
    """Return True if a parser reads the call exactly; a parser of another family may fail in any way."""
    try:
        parsed = manager.get_tool_parser(name)(tokenizer).extract_tool_calls(text, request)
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in parsed.tool_calls]
    except Exception:
        return False
    return calls == [(TOOLS[0]["function"]["name"], {"city": CITY})]
