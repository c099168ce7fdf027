"""Ways to generate that a bench can compare: Headstart with a drafter, and other engines where they are installed.

Peers run the same file with as many threads, and are imported when asked for. Their seconds begin with the first token, which
leaves the prompt's reading out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, final

from headstart.bench.speed import Answer, Way
from headstart.errors import MissingExtraError, OptionError, did_you_mean
from headstart.generation import LLM

__all__ = ["PEERS", "LlamaCppWay", "OwnWay", "TransformersWay", "peer"]


@final
class OwnWay:
    """Headstart on one LLM with one draft length.

    With a temperature the rule is `coupled` unless told otherwise: all ways then say the same, which makes pairs of them."""

    def __init__(self, llm: LLM, *, gamma: int | Literal["auto"] = 1, rule: str | None = None) -> None:
        drafter = llm.drafter.name
        self.name = "plain" if drafter == "none" else f"{drafter} γ={gamma}"
        self._llm, self._gamma, self._rule = llm, gamma, rule
        self.exact = rule in (None, "coupled")

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once."""
        asked: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "gamma": self._gamma}
        if temperature == 0 or self._rule in (None, "coupled"):
            asked["seed"] = seed
        if self._rule is not None:
            asked["rule"] = self._rule
        out = self._llm.generate(prompt, **asked)
        seconds = out.stats.seconds.total - out.stats.seconds.prefill
        notes = {} if out.schedule is None else out.schedule.to_json()
        return Answer(
            token_ids=tuple(out.token_ids),
            seconds=seconds,
            timed_tokens=len(out.token_ids),
            rounds=out.stats.num_rounds,
            notes=notes,
        )


@final
class LlamaCppWay:
    """llama.cpp through llama-cpp-python, without a draft, on the same GGUF file."""

    name = "llama.cpp"
    exact = False

    def __init__(self, file: Path, llm: LLM, *, threads: int, context: int) -> None:
        """`llm` turns prompts into tokens, so that both read the same."""
        try:
            import llama_cpp
        except ImportError:
            raise MissingExtraError("llama-cpp-python", "bench", "--against llama.cpp") from None
        self._llm = llm
        self._peer: Any = llama_cpp.Llama(
            model_path=str(file), n_ctx=context, n_threads=threads, n_threads_batch=threads, n_gpu_layers=0, verbose=False
        )

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once; from the first token on the clock runs."""
        ids = self._llm.prompt_ids(prompt)
        self._peer.set_seed(seed)
        ends = self._llm.tokenizer.end_ids if self._llm.tokenizer else frozenset()
        timer = _Timer()
        for token in self._peer.generate(ids, temp=temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, reset=True):
            timer.token(int(token))
            if token in ends or len(timer.tokens) >= max_tokens:
                break
        return timer.answer()


@final
class TransformersWay:
    """transformers' own `generate`, without an assistant, on the same file or folder."""

    name = "transformers"
    exact = False

    def __init__(self, source: Path, llm: LLM, *, threads: int) -> None:
        try:
            import torch
            import transformers
        except ImportError:
            raise MissingExtraError("transformers", "transformers", "--against transformers") from None
        torch.set_num_threads(threads)
        where = {"gguf_file": source.name} if source.is_file() else {}
        folder = source.parent if source.is_file() else source
        # Its own attention and cache, not the ones Headstart puts in their place.
        load = transformers.AutoModelForCausalLM.from_pretrained
        self._llm = llm
        self._network: Any = load(folder, dtype="auto", local_files_only=True, **where).eval()

    def answer(self, prompt: str, *, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Generate once; from the first token on the clock runs."""
        import torch

        torch.manual_seed(seed)
        ids = torch.tensor([self._llm.prompt_ids(prompt)])
        ends = sorted(self._llm.tokenizer.end_ids) if self._llm.tokenizer else []
        chance: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            chance = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        timer = _Timer()
        with torch.inference_mode():
            self._network.generate(
                ids, max_new_tokens=max_tokens, eos_token_id=ends or None, pad_token_id=0, streamer=_Streamer(timer), **chance
            )
        return timer.answer()


PEERS: dict[str, Callable[..., Way]] = {"llama.cpp": LlamaCppWay, "transformers": TransformersWay}


def peer(name: str, source: Path, llm: LLM, *, threads: int, context: int) -> Way:
    """The peer called `name`. Raises OptionError for one that is not known or cannot read the file, MissingExtraError where it is
    not installed."""
    if name not in PEERS:
        raise OptionError(f"`against` must be one of {', '.join(PEERS)}, got {name!r}{did_you_mean(name, PEERS)}")
    if name == "transformers":
        return TransformersWay(source, llm, threads=threads)
    if source.suffix.lower() != ".gguf":
        raise OptionError(f"`against` llama.cpp reads .gguf files, got {str(source)!r}; compare with transformers instead")
    return LlamaCppWay(source, llm, threads=threads, context=context)


class _Timer:
    """Tokens as they come, and the seconds after the first."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.tokens: list[int] = []
        self._first = self._last = 0.0

    def token(self, token: int) -> None:
        self._last = self._clock()
        if not self.tokens:
            self._first = self._last
        self.tokens.append(token)

    def answer(self) -> Answer:
        timed = max(0, len(self.tokens) - 1)
        return Answer(token_ids=tuple(self.tokens), seconds=self._last - self._first, timed_tokens=timed, rounds=timed or None)


class _Streamer:
    """What transformers tells of each token: first the whole prompt, then one token at a time."""

    def __init__(self, timer: _Timer) -> None:
        self._timer, self._begun = timer, False

    def put(self, value: Any) -> None:
        if self._begun:
            for token in value.reshape(-1).tolist():
                self._timer.token(int(token))
        self._begun = True

    def end(self) -> None:
        """Nothing is held back."""
