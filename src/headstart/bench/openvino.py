"""OpenVINO GenAI as a peer: its LLMPipeline on the same GGUF file, plainly and with prompt lookup.

It reads GGUF files of the llama, qwen2 and qwen3 architectures with weights in Q4_0, Q4_1, Q8_0 and a few more kinds; what it
cannot read it is left out for. It takes no draft model in a GGUF file.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from headstart.bench.peers import Peer, Setup
from headstart.bench.speed import Answer, Way
from headstart.bench.ways import Timer
from headstart.errors import MissingExtraError, ModelError

__all__ = ["OpenVinoWay", "open_peer"]


def open_peer(setup: Setup) -> Peer:
    """OpenVINO GenAI on the same GGUF file. Raises MissingExtraError without it, ModelError for a file it cannot read."""
    if setup.source.suffix.lower() != ".gguf":
        raise ModelError(f"openvino reads .gguf files here, got {str(setup.source)!r}; compare with transformers instead")
    try:
        import openvino_genai
    except ImportError:
        raise MissingExtraError("openvino-genai", "openvino", "--against openvino") from None
    ways: list[Way] = [OpenVinoWay(setup, name="openvino")]
    if setup.looks_up and setup.gammas:
        pipeline = _pipeline(setup, prompt_lookup=True)
        ways += [OpenVinoWay(setup, name=f"openvino ngram γ={gamma}", pipeline=pipeline, gamma=gamma) for gamma in setup.gammas]
    lacks = [f"openvino with {name} is left out: its draft models are not GGUF files" for name, _ in setup.drafts]
    return Peer(name="openvino", ways=tuple(ways), about={"version": openvino_genai.__version__}, lacks=tuple(lacks))


def _pipeline(setup: Setup, **options: Any) -> Any:
    import openvino_genai

    try:
        return openvino_genai.LLMPipeline(str(setup.source), "CPU", INFERENCE_NUM_THREADS=setup.threads, **options)
    except RuntimeError as error:  # whatever it finds in a file
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(f"openvino cannot read {setup.source.name}: {lines[-1] if lines else 'no reason given'}") from None


@final
class OpenVinoWay:
    """Its pipeline; with `gamma`, one made for prompt lookup."""

    exact = False

    def __init__(self, setup: Setup, *, name: str, pipeline: Any = None, gamma: int | None = None) -> None:
        self.name = name
        self._setup, self._gamma = setup, gamma
        self._pipeline = pipeline or _pipeline(setup)

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once; from the first token on the clock runs."""
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.rng_seed = max_tokens, seed
        config.eos_token_id, config.stop_token_ids = -1, set(self._setup.end_ids)
        config.do_sample = temperature > 0
        if temperature > 0:
            config.temperature, config.top_k, config.top_p = temperature, 0, 1.0
        if self._gamma is not None:
            config.num_assistant_tokens, config.max_ngram_size = self._gamma, 3
        ids = openvino.Tensor(np.array([self._setup.llm.prompt_ids(prompt)], dtype=np.int64))
        timer = Timer()
        self._pipeline.generate(ids, config, _streamer(timer))
        return timer.answer(max_tokens=max_tokens, counts_rounds=self._gamma is None)


def _streamer(timer: Timer) -> Any:
    """Tells `timer` of every token; made here because its base class is the engine's."""
    import openvino_genai

    class Streamer(openvino_genai.StreamerBase):  # type: ignore[misc]
        def write(self, token: Any) -> Any:
            timer.add(token if isinstance(token, list) else [token])
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Nothing is held back."""

    return Streamer()
