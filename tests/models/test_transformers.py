"""Models run by transformers: equal to transformers alone, refused when they cannot roll back, one line when they fail."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.errors import ModelError
from headstart.interfaces import Ask
from tests.models.conftest import NETWORKS, VOCAB

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from headstart.models import transformers as ours  # noqa: E402  (only where torch is installed)
from headstart.models.attention import ATTENTION  # noqa: E402
from headstart.models.kv import KVCache  # noqa: E402
from headstart.models.transformers import TransformersModel  # noqa: E402


def tokens_for(count: int, vocab_size: int = VOCAB, seed: int = 0) -> list[int]:
    """`count` random token ids."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab_size, count)]


def score(model: TransformersModel, cache: Any, tokens: list[int], **asked: Any) -> NDArray[Any]:
    """Logits of one ask."""
    return model.score([Ask(cache=cache, tokens=tokens, **asked)])[0].logits


def alone(model: TransformersModel, tokens: list[int]) -> NDArray[Any]:
    """[tokens, vocab]: transformers' own eager attention, without any cache."""
    model.network.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            answer: NDArray[Any] = model.network(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    finally:
        model.network.set_attn_implementation(ATTENTION)
    return answer


@pytest.fixture(params=NETWORKS)
def model(request: pytest.FixtureRequest, models: dict[str, Any]) -> TransformersModel:
    """Each random network in turn."""
    network: TransformersModel = models[request.param]
    return network


def test_equals_transformers_without_a_cache(model: TransformersModel) -> None:
    """In one pass, in uneven pieces and one at a time, far beyond the window of 8."""
    tokens = tokens_for(40)
    expected = alone(model, tokens)
    for cuts in ([], [1, 2, 9, 10, 26], list(range(1, 40))):
        cache = model.open()
        rows = [score(model, cache, tokens[a:b]) for a, b in zip([0, *cuts], [*cuts, 40], strict=True)]
        np.testing.assert_allclose(np.concatenate(rows), expected, atol=1e-4, rtol=1e-4)


def test_windows_are_those_of_the_configuration(models: dict[str, Any]) -> None:
    """The window reaches our attention in the layers that have one, and only there."""
    for name, windows in {"gemma3": [8, None, 8], "mistral": [8, 8, 8], "llama": [None, None, None]}.items():
        score(models[name], models[name].open(), [1])
        assert list(models[name].windows.values()) == windows


def test_long_prompts_are_scored_in_chunks(model: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of at most 7 tokens, cutting sequences and a tree in two, give the rows of one pass."""
    parents = [-1, -1, 0, 0, 1, 2, 3, 4, 5]
    texts = [tokens_for(20), tokens_for(9, seed=1), tokens_for(5, seed=2)]

    def run() -> list[NDArray[Any]]:
        caches = [model.open() for _ in texts]
        score(model, caches[1], tokens_for(10, seed=3))
        shapes = ({"num_logits": 9}, {"parents": parents}, {})
        asks = [Ask(cache=c, tokens=t, **s) for c, t, s in zip(caches, texts, shapes, strict=True)]
        return [scores.logits for scores in model.score(asks)]

    whole = run()
    monkeypatch.setattr(ours, "_CHUNK_TOKENS", 7)
    for got, expected in zip(run(), whole, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, torch.OutOfMemoryError])
def test_a_failing_pass_changes_nothing(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    """Whatever interrupts a pass between two layers, in its second chunk, every cache is as before and goes on right."""
    model = models["qwen3"]
    text, other = tokens_for(30), tokens_for(9, seed=1)
    cache, beside = model.open(), model.open()
    score(model, cache, text[:10])
    monkeypatch.setattr(ours, "_CHUNK_TOKENS", 8)
    calls = 0
    extend = KVCache.extend

    def interrupted(self: KVCache, layer: int, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # three layers of the first chunk, then the second layer of the second
            raise failure
        return extend(self, layer, *rest)

    asks = [Ask(cache=cache, tokens=tokens_for(12, seed=5)), Ask(cache=beside, tokens=other)]
    monkeypatch.setattr(KVCache, "extend", interrupted)
    with pytest.raises(failure):
        model.score(asks)
    monkeypatch.setattr(KVCache, "extend", extend)
    assert (cache.length, beside.length) == (10, 0)
    np.testing.assert_allclose(score(model, cache, text[10:]), alone(model, text)[10:], atol=1e-4, rtol=1e-4)


def test_every_layer_holds_what_the_length_says(models: dict[str, Any]) -> None:
    """After rewinds and a kept path each layer's keys and values are those of a cache that only ever saw the text."""
    model = models["gemma3"]
    text, nodes = tokens_for(20), tokens_for(4, seed=1)
    cache = model.open()
    score(model, cache, text[:15] + nodes)
    cache.rewind(15)
    score(model, cache, [nodes[0], text[15], nodes[1], text[16]], parents=[-1, -1, 1, 1])
    cache.keep([1, 3])
    score(model, cache, text[17:])
    fresh = model.open()
    score(model, fresh, text)
    for part in ("_keys", "_values"):
        for held, expected in zip(getattr(cache, part), getattr(fresh, part), strict=True):
            torch.testing.assert_close(held[:, :, : cache.length], expected[:, :, :20], atol=1e-4, rtol=1e-4)


def test_two_threads_may_score_at_once(models: dict[str, Any]) -> None:
    """Passes of different threads on different caches do not meet."""
    model = models["llama"]
    texts = [tokens_for(20, seed=seed) for seed in range(4)]
    answers: dict[int, NDArray[Any]] = {}

    def work(index: int) -> None:
        cache = model.open()
        answers[index] = np.concatenate([score(model, cache, [token]) for token in texts[index]])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, text in enumerate(texts):
        np.testing.assert_allclose(answers[index], alone(model, text), atol=1e-4, rtol=1e-4)


def test_states_what_it_is(folders: dict[str, Path], capfd: pytest.CaptureFixture[str], recwarn: Any) -> None:
    """Attributes tell what runs where; loading says nothing on its own, only to `progress`."""
    capfd.readouterr()
    threads = torch.get_num_threads()
    stages: list[str] = []
    model = TransformersModel.load(
        folders["qwen2"],
        dtype="bfloat16",
        device="cpu",
        context=40,
        threads=1,
        progress=lambda stage, fraction: stages.append(stage),
    )
    assert (model.engine, model.dtype, model.device) == ("transformers", "bfloat16", "cpu")
    assert (model.vocab_size, model.context_limit) == (VOCAB, 40)
    assert model.num_parameters == sum(weight.numel() for weight in model.network.parameters())
    assert model.config.model_type == "qwen2"
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
    assert stages == ["reading the configuration", "reading the weights", "checking that it rolls back"]
    assert score(model, model.open(), [1, 2]).dtype == np.float32
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


def test_auto_number_format_follows_the_hardware(folders: dict[str, Path]) -> None:
    """bfloat16 exactly where /proc/cpuinfo lists instructions for it."""
    words = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else set()
    expected = "bfloat16" if words & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"
    assert TransformersModel.load(folders["llama"], device="cpu").dtype == expected


# The self-check at load


def _forgetful(extend: Any) -> Any:
    """Hands out the new keys alone, as a model that ignores its cache would see them."""
    return lambda cache, layer, start, keys, values: (extend(cache, layer, start, keys, values), (keys, values))[1]


def _stale(extend: Any) -> Any:
    """Never overwrites: what a rewind has forgotten stays."""

    def broken(cache: Any, layer: int, start: int, keys: Any, values: Any) -> Any:
        held = cache._keys[layer]
        if held is not None and start == 2 and layer == 1:
            start = 3
        return extend(cache, layer, start, keys, values)

    return broken


@pytest.mark.parametrize("broken", [_forgetful, _stale])
def test_self_check_refuses_what_does_not_roll_back(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    """A network that sees other keys than it should is refused at load, whatever its configuration says."""
    monkeypatch.setattr(KVCache, "extend", broken(KVCache.extend))
    for name in ("llama", "gemma2"):
        with pytest.raises(ModelError, match="does not roll back"):
            TransformersModel.load(folders[name], dtype="float32", device="cpu")


def test_self_check_refuses_a_network_that_looks_ahead(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention in both directions cannot be scored piece by piece."""
    llama = transformers.models.llama.modeling_llama
    monkeypatch.setattr(llama, "create_causal_mask", lambda **_: torch.ones(1, 1, 5, 5, dtype=torch.bool))
    with pytest.raises(ModelError, match="does not roll back"):
        TransformersModel.load(folders["llama"], dtype="float32", device="cpu")


# SmolLM2


@pytest.fixture(scope="module")
def text() -> list[int]:
    """Forty tokens of the real vocabulary, after an ordinary beginning."""
    return [1, 9690, 198, 2683, 359, 253, 5356, 5646, *tokens_for(32, 49152)]


def test_smollm2_equals_transformers_alone(smollm2_float32: Any, text: list[int]) -> None:
    """A real model from a GGUF file: in pieces, with a rewind, against one pass without a cache."""
    assert (smollm2_float32.vocab_size, smollm2_float32.context_limit) == (49152, 8192)
    expected = alone(smollm2_float32, text)
    cache = smollm2_float32.open()
    first = score(smollm2_float32, cache, text[:20] + text[5:9])
    cache.rewind(20)
    rest = score(smollm2_float32, cache, text[20:])
    np.testing.assert_allclose(np.concatenate([first[:20], rest]), expected, atol=2e-3)


def test_smollm2_tree_and_batch(smollm2_float32: Any, text: list[int]) -> None:
    """A tree beside another sequence: paths equal chains, and the kept path goes on as its chain."""
    cache, beside = smollm2_float32.open(), smollm2_float32.open()
    score(smollm2_float32, cache, text[:10], num_logits=0)
    rows = smollm2_float32.score(
        [Ask(cache=cache, tokens=[*text[10:13], 7], parents=[-1, -1, 0, 2]), Ask(cache=beside, tokens=text[:15])]
    )
    chain = [*text[:11], text[12], 7, 8]
    expected = alone(smollm2_float32, chain)
    np.testing.assert_allclose(rows[0].logits[[0, 2, 3]], expected[10:13], atol=2e-3)
    np.testing.assert_allclose(rows[1].logits, alone(smollm2_float32, text[:15]), atol=2e-3)
    cache.keep([0, 2, 3])
    np.testing.assert_allclose(score(smollm2_float32, cache, [8]), expected[13:], atol=2e-3)


# Installed or not


def test_missing_extra_is_named() -> None:
    """Without transformers the error is the pip line."""
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from headstart.errors import MissingExtraError\n"
        "try:\n    import headstart.models.transformers\n"
        "except MissingExtraError as error:\n    print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "`transformers`" in out
    assert "pip install 'headstart[transformers]'" in out
