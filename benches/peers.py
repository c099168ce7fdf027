"""llama.cpp as a peer, through its own Python binding (pip install llama-cpp-python, built natively).

Only what the benches need: score tokens after a context, read every row of logits back, cut the cache again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class LlamaCpp:
    """One sequence on llama.cpp with `threads` CPU threads."""

    name = "llama.cpp"

    def __init__(self, path: Path, threads: int, context: int = 2048) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        llama_cpp.llama_log_set(_quiet(llama_cpp), None)
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_options)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.version = llama_cpp.__version__

    def score(self, tokens: list[int], start: int, all_rows: bool = True) -> np.ndarray:
        """[rows, vocab] logits after each of at most 512 tokens (or after the last alone)."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), start + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = int(all_rows or i == len(tokens) - 1)
        if self._lib.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        rows = len(tokens) if all_rows else 1
        return np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), shape=(rows, self.vocab_size))

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens."""
        self._lib.llama_memory_seq_rm(self._memory, 0, length, -1)


def _quiet(lib: Any) -> Any:
    callback = lib.llama_log_callback(lambda level, text, data: None)
    _KEPT.append(callback)  # ctypes callbacks die with their last reference
    return callback


_KEPT: list[Any] = []
