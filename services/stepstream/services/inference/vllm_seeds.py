"""Let vLLM 0.32 rewind the random numbers of a request with a seed on a CPU.

A step that computes only a part of a context samples a token for it too, and drops it. vLLM then sets the generator
back by an offset, which PyTorch's generators on a CPU do not have: the engine ended. Here the state before the sample
is restored, so that a seed gives the same tokens however the context was split, also after a swap that recomputes it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def rewind_seeded_requests() -> None:
    """Patch the model runner of vLLM's CPU workers in this process; a second call has no effect."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if "_sample" in vars(CPUModelRunner):
        return

    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in _dropped(self).values()]
        output = super(CPUModelRunner, self)._sample(*args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    def bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _hidden(self.input_batch.generators, _dropped(self)):
            return super(CPUModelRunner, self)._bookkeeping_sync(*args, **kwargs)

    CPUModelRunner._sample = sample
    CPUModelRunner._bookkeeping_sync = bookkeeping_sync


def _dropped(runner: Any) -> dict[int, Any]:
    """Return the generators, by row, of the rows whose sampled token is dropped."""
    dropped = runner.discard_request_mask.np
    return {row: generator for row, generator in runner.input_batch.generators.items() if dropped[row]}


@contextmanager
def _hidden(generators: dict[int, Any], some: dict[int, Any]) -> Iterator[None]:
    """Take some generators out meanwhile, so that vLLM does not set them back too."""
    for row in some:
        del generators[row]
    try:
        yield
    finally:
        generators.update(some)
