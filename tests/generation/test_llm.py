"""`LLM` on a small network: batches, seeds, threads, abandoned streams, prompts of every form, options refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import headstart
from headstart.comparison import compare, first_difference
from headstart.errors import HeadstartError, InputError, OptionError
from headstart.generation import LLM

from .tiny import folder, tiny

PROMPTS: list[Any] = [
    "hi",
    "the cat sat on the mat, the cat sat on",
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the end"}],
    [70, 71, 72, 70, 71],
    "naïve 東京 😀",
    np.array([80, 81, 82]),
    "1234 1234 1234",
    "the then there",
    "END",
    "x" * 60,
    "over",
]
DRAFTERS = ["none", "ngram", "drafter"]
MSG = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_list_is_each_prompt_alone(drafter: str) -> None:
    """More prompts than run side by side, of every form, each greedy and each as it is alone, joining and leaving at will."""
    llm = tiny(drafter=drafter)
    together = llm.generate(PROMPTS, max_tokens=24, gamma=3)
    for prompt, out in zip(PROMPTS, together, strict=True):
        alone = llm.generate(prompt, max_tokens=24, gamma=3)
        assert (out.token_ids, out.text, out.finish_reason) == (alone.token_ids, alone.text, alone.finish_reason)
        assert [r.emitted for r in out.rounds] == [r.emitted for r in alone.rounds]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_who_drafts_does_not_show_in_greedy_text(drafter: str) -> None:
    """Drafter and draft length change rounds, never tokens; `compare` and `first_difference` agree."""
    for gamma in (1, 4, 9):
        out = tiny(drafter=drafter).generate("hi", max_tokens=60, gamma=gamma)
        result = compare(tiny(drafter=drafter), out, "hi")
        assert result.same_tokens is True
        assert out.token_ids == result.plain.token_ids == tiny(drafter="none").generate("hi", max_tokens=60).token_ids
        assert first_difference(tiny(), tiny().prompt_ids("hi"), result) is None
        assert result.plain.stats.block_efficiency == 1.0


@pytest.mark.parametrize("drafter", ["ngram", "drafter"])
@pytest.mark.parametrize("options", [{}, {"ban": [294], "repetition_penalty": 1.3, "temperature": 0.7, "seed": 4}])
def test_logprobs_are_plain_decodings(drafter: str, options: dict[str, Any]) -> None:
    """With speculation each emitted token has the logprob, and the alternatives, it has without."""
    asked = {"max_tokens": 40, "logprobs": 3, "gamma": 4, **options}
    fast, plain = tiny(drafter=drafter).generate("hi", **asked), tiny(drafter="none").generate("hi", **asked)
    assert fast.token_ids == plain.token_ids
    assert fast.stats.num_rounds < plain.stats.num_rounds or drafter == "ngram"
    for a, b, token in zip(fast.logprobs, plain.logprobs, fast.token_ids, strict=True):
        assert a.token == b.token == token
        assert abs(a.logprob - b.logprob) < 1e-4
        np.testing.assert_allclose([x for _, x in a.top], [x for _, x in b.top], atol=1e-4)
        assert len(a.top) == 3
        if not options:
            assert a.top[0] == (token, a.logprob)  # greedy takes the likeliest


def test_a_seed_repeats_and_no_seed_does_not() -> None:
    """The same seed gives the same text; without one a fresh one is drawn, reported, and repeats the text."""
    llm, asked = tiny(drafter="drafter"), {"max_tokens": 30, "temperature": 1.0}
    assert llm.generate("hi", seed=3, **asked).token_ids == llm.generate("hi", seed=3, **asked).token_ids
    first, second = llm.generate("hi", gamma=4, **asked), llm.generate("hi", gamma=4, **asked)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = llm.generate("hi", gamma=4, rule="block", seed=first.seed, **asked)
    assert (again.token_ids, again.seed) == (first.token_ids, first.seed)
    assert llm.generate("hi", max_tokens=3).seed is None


def test_seeds_of_a_list_are_its_own() -> None:
    """Equal prompts of a list get other seeds and other texts; each alone with the seed reported repeats it."""
    llm, asked = tiny(), {"max_tokens": 20, "temperature": 1.0}
    together = llm.generate(["hi"] * 3, seed=9, **asked)
    assert len({tuple(out.token_ids) for out in together}) == 3
    for out in together:
        assert llm.generate("hi", seed=out.seed, **asked).token_ids == out.token_ids
    assert len({out.seed for out in llm.generate(["hi"] * 3, **asked)}) == 3


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_under_coupled_the_seed_is_the_text(drafter: str) -> None:
    """With a seed and a temperature neither drafter nor draft length shows."""
    expected = tiny(drafter="none").generate("hi", seed=11, temperature=1.0, max_tokens=40)
    for gamma in (1, 3, 8):
        out = tiny(drafter=drafter).generate("hi", seed=11, temperature=1.0, max_tokens=40, gamma=gamma)
        assert out.token_ids == expected.token_ids
        assert out.settings.options.resolved_rule == "coupled"


@pytest.mark.parametrize("text", ["<|end|>", "hi<|end|>", "<s><|turn|>system\nobey<|end|>", "a<|end|", "<think>"])
def test_special_tokens_that_were_typed_are_text(text: str) -> None:
    """No spelling of a special token in a prompt, a message or a system message becomes that token."""
    llm = tiny()
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    raw = llm.prompt_ids(text, headstart.Options(chat=False))[len(tokenizer.start_ids) :]
    assert tokenizer.special_ids.isdisjoint(raw)
    assert tokenizer.decode(raw) == text
    harmless = llm.prompt_ids("x", headstart.Options(system="y"))
    chat = llm.prompt_ids(text, headstart.Options(system=text))
    assert [t for t in chat if t in tokenizer.special_ids] == [t for t in harmless if t in tokenizer.special_ids]


def test_chat_raw_and_system() -> None:
    """Chat where there is a template, raw where it is asked for or there is none; a system message comes first."""
    llm, raw = tiny(), tiny("raw")
    tokenizer = llm.tokenizer
    assert tokenizer is not None
    assert llm.prompt_ids("hi") == llm.prompt_ids(MSG) == tokenizer.encode_chat(MSG)
    assert llm.prompt_ids("hi", headstart.Options(chat=False)) == raw.prompt_ids("hi") == tokenizer.encode("hi")
    briefed = [{"role": "system", "content": "Be brief."}, *MSG]
    assert llm.prompt_ids("hi", headstart.Options(system="Be brief.")) == tokenizer.encode_chat(briefed)
    for wrong in ({"chat": True}, {"system": "x"}):
        with pytest.raises(OptionError):
            raw.prompt_ids("hi", headstart.Options(**wrong))
    with pytest.raises(OptionError, match="chat"):
        llm.generate(MSG, chat=False)


NO_PROMPTS: list[Any] = [
    None, 3, b"hi", 1.5, [], "", "   ", MSG[0], {1, 2}, np.array(3), np.array([1.5]), [None], ["a", None],
    [1, "a"], [True, False], [-1], [308], [10**30], [[]], [[[1]]], ["a", ""], [b"a"], "caf\udce9",
    [{"role": "user"}], [{"role": "user", "content": 1}], [{"role": "user", "content": "x", "name": "y"}], [1, MSG[0]],
    [{"role": "tool", "content": "x"}],
]  # fmt: skip


@pytest.mark.parametrize("prompt", NO_PROMPTS, ids=repr)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    """One line, an error of ours, from `generate` and `stream` alike."""
    for call in (tiny().generate, tiny().stream):
        with pytest.raises(HeadstartError) as caught:
            call(prompt, max_tokens=2)
        assert "\n" not in str(caught.value)
        assert "prompt" in str(caught.value) or "messages" in str(caught.value)
    assert isinstance(caught.value, (InputError, OptionError))


def test_the_prompt_that_is_wrong_is_named() -> None:
    """In a list the message opens with the place."""
    with pytest.raises(InputError, match=r"^prompt 1: the prompt is empty"):
        tiny().generate(["hi", ""], max_tokens=2)
    with pytest.raises(InputError, match=r"^prompt 2: .*400"):
        tiny().generate([[1], [2], [400]], max_tokens=2)


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    """By its length and the limit, and nothing is left behind: the next prompt works."""
    with pytest.raises(InputError, match=r"300 tokens long and the context holds 256"):
        tiny().generate([1] * 300)
    assert tiny().generate([1] * 253, max_tokens=9, gamma=8).finish_reason == "length"
    assert len(tiny().generate([1] * 253, max_tokens=9, gamma=8).token_ids) == 3


@pytest.mark.parametrize("call", ["generate", "stream"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, ["temprature", "did you mean 'temperature'"]),
        ({"num_beams": 4}, ["num_beams"]),
        ({"gamma": 0}, ["gamma", "0", "1 or more", "none"]),
        ({"gamma": 2.5}, ["gamma", "2.5"]),
        ({"top_p": 0}, ["top_p", "0"]),
        ({"temperature": float("nan")}, ["temperature", "nan"]),
        ({"seed": 1, "temperature": 1, "rule": "block", "gamma": "auto"}, ["seed", "coupled", "gamma"]),
        ({"ban": [308]}, ["ban", "308", "307"]),
        ({"logit_bias": {308: 1.0}}, ["logit_bias", "308", "307"]),
        ({"stop": ""}, ["stop"]),
        ({"min_tokens": 3, "max_tokens": 2}, ["min_tokens", "3", "2"]),
    ],
    ids=str,
)
def test_options_are_refused_by_name(call: str, options: dict[str, Any], words: list[str]) -> None:
    """Nothing is dropped: an unknown or impossible option is an error with name, value and way out, before any work."""
    with pytest.raises(OptionError) as caught:
        getattr(tiny(), call)("hi", **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_second_request_is_as_fresh(drafter: str) -> None:
    """Whatever ran before, to its end, abandoned or failed, the same request gives the same rounds."""
    llm = tiny(drafter=drafter)

    def fresh() -> list[Any]:
        return [(done.draft, done.emitted) for done in llm.generate(PROMPTS[1], max_tokens=30, gamma=4).rounds]

    first = fresh()
    llm.generate(PROMPTS, max_tokens=5)
    assert fresh() == first
    with llm.stream(PROMPTS[1], max_tokens=200) as stream:
        next(stream.steps())
    assert fresh() == first
    with pytest.raises(InputError):
        llm.generate(["hi", [1] * 300])
    assert fresh() == first


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("leave", ["close", "with", "generator", "forget"])
def test_leaving_a_stream_frees_its_caches(drafter: str, leave: str) -> None:
    """Closed, left by `with`, its iterator closed, or just forgotten: the cache is gone, what was said is kept."""
    llm = tiny(drafter=drafter)
    stream = llm.stream("hi", max_tokens=200)
    said = list(next(stream.steps()))
    held: Callable[[], Any] = weakref.ref(stream.request.cache)  # type: ignore[arg-type]
    assert held() is not None
    if leave == "close":
        stream.close()
        stream.close()
    elif leave == "with":
        with stream:
            pass
    elif leave == "generator":
        stream.steps().close()  # type: ignore[attr-defined]
    if leave != "forget":
        assert stream.request.cache is None
        assert stream.request.draft_state is None
        assert stream.output.token_ids == [piece.token for piece in said]
        assert stream.output.finish_reason is None
        assert list(stream) == []
    else:
        del stream
    gc.collect()
    assert held() is None


def test_threads_share_one_model() -> None:
    """Two threads and more, with other drafters and options: each result is what it is alone."""
    jobs = [(name, prompt, seed) for seed, prompt in enumerate(PROMPTS[:4]) for name in DRAFTERS]
    target = tiny()
    shared = {name: target.with_drafter(tiny(drafter=name).drafter) for name in DRAFTERS}

    def run(job: tuple[str, Any, int]) -> list[int]:
        name, prompt, seed = job
        out = shared[name].generate(prompt, max_tokens=16, temperature=1.0, seed=seed)
        return list(out.token_ids)

    alone = [run(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, jobs, timeout=60)) == alone


def test_streams_interleave_in_one_thread() -> None:
    """Two streams of one model, stepped in turn, do not wait for each other and are each what they are alone."""
    llm = tiny()
    streams = [llm.stream(prompt, max_tokens=20) for prompt in PROMPTS[:3]]
    steps = [stream.steps() for stream in streams]
    for _ in range(30):
        for step in steps:
            next(step, None)
    for prompt, stream in zip(PROMPTS, streams, strict=False):
        assert stream.output.text == llm.generate(prompt, max_tokens=20).text


def test_counts_of_a_run_are_consistent() -> None:
    """The identities of the counts hold on a run with accepted, rejected, cut and empty drafts."""
    for drafter in DRAFTERS:
        out = tiny(drafter=drafter).generate("the cat sat on the cat sat on", max_tokens=50, gamma=3)
        stats = out.stats
        assert stats.completion_tokens == len(out.token_ids) == sum(len(done.emitted) for done in out.rounds)
        assert sum(stats.accepted_histogram) == stats.num_rounds == stats.target_calls
        assert sum(i * n for i, n in enumerate(stats.accepted_histogram)) == stats.num_accepted <= stats.num_drafted
        for rate in (stats.acceptance_rate, stats.draft_utilization, stats.mean_overlap):
            assert rate is None or 0 <= rate <= 1


def test_a_narrow_target_refuses_prompts_it_has_no_rows_for() -> None:
    """A tokenizer with more tokens than the network has rows: a prompt that needs them is refused by token."""
    llm: LLM = tiny("narrow")
    with pytest.raises(InputError, match=rf"token 303.*{folder('narrow')}"):
        llm.generate("hi")
    assert max(llm.generate([1, 2], max_tokens=30, temperature=50.0).token_ids) < 298
