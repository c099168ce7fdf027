"""transformers as a peer: its own `generate` on the same file or folder, plainly, with prompt lookup, with an assistant.

A GGUF file is widened to the numbers torch computes in (bfloat16 where the processor has it), so it reads more bytes a token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from headstart.bench.peers import Peer, Setup
from headstart.bench.speed import Answer, Way
from headstart.bench.ways import Timer
from headstart.errors import MissingExtraError

__all__ = ["Streamer", "TransformersWay", "open_peer"]


def open_peer(setup: Setup) -> Peer:
    """transformers on the same model. Raises MissingExtraError where it is not installed, ModelError for what it cannot read."""
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "transformers", "--against transformers") from None
    network = _network(setup.source, setup)
    ways: list[Way] = [TransformersWay(network, setup, name="transformers")]
    for gamma in setup.gammas:
        if setup.looks_up:
            how: dict[str, Any] = {"prompt_lookup_num_tokens": gamma}
            ways.append(TransformersWay(network, setup, name=f"transformers ngram γ={gamma}", how=how))
    for name, draft in setup.drafts:
        assistant = _network(draft, setup)
        for gamma in setup.gammas:
            ways.append(
                TransformersWay(
                    network, setup, name=f"transformers {name} γ={gamma}", how={"assistant_model": assistant}, gamma=gamma
                )
            )
    about = {"version": transformers.__version__, "dtype": str(network.dtype).removeprefix("torch.")}
    return Peer(name="transformers", ways=tuple(ways), about=about)


def _network(source: Path, setup: Setup) -> Any:
    from headstart.models.checkpoint import load_network

    network, _ = load_network(
        str(source),
        revision=None,
        gguf_file=None,
        dtype=setup.dtype,
        device="cpu",
        threads=setup.threads,
        offline=True,
        context=None,
        progress=lambda stage, fraction: None,
    )
    return network


@final
class TransformersWay:
    """`generate` with whatever speculation of its own `how` asks for."""

    exact = False

    def __init__(
        self, network: Any, setup: Setup, *, name: str, how: dict[str, Any] | None = None, gamma: int | None = None
    ) -> None:
        """`gamma`: tokens the assistant in `how` drafts, every round alike."""
        self.name = name
        self._network, self._setup, self._how = network, setup, how or {}
        if gamma is not None:
            config = self._how["assistant_model"].generation_config
            config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, "constant"
            config.assistant_confidence_threshold = 0.0
        self._gamma = gamma

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once; from the first token on the clock runs."""
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(self._setup.threads)
        if self._gamma is not None:  # ways may share an assistant
            self._how["assistant_model"].generation_config.num_assistant_tokens = self._gamma
        ids = torch.tensor([self._setup.llm.prompt_ids(prompt)])
        chance: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            chance = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        timer = Timer()
        with torch.inference_mode():
            self._network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                eos_token_id=sorted(self._setup.end_ids) or None,
                pad_token_id=0,
                streamer=Streamer(timer),
                **self._how,
                **chance,
            )
        return timer.answer(max_tokens=max_tokens)


class Streamer:
    """What transformers tells of each round: first the whole prompt, then the tokens it kept."""

    def __init__(self, timer: Timer) -> None:
        self._timer, self._begun = timer, False

    def put(self, value: Any) -> None:
        """The next tokens."""
        if self._begun:
            self._timer.add([int(token) for token in value.reshape(-1).tolist()])
        self._begun = True

    def end(self) -> None:
        """Nothing is held back."""
