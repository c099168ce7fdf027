"""Other engines: asked for the same thing, timed from the first token, left out by a clear line where they cannot take part."""

from __future__ import annotations

import os
import stat
import sys
import types

import numpy as np
import pytest

from headstart.bench import llamacpp, openvino
from headstart.bench.llamacpp import LlamaCppWay, LlamaProgramWay
from headstart.bench.openvino import OpenVinoWay
from headstart.bench.peers import Setup, check_peers, open_peers
from headstart.bench.transformers import Streamer
from headstart.bench.ways import Timer
from headstart.cli.main import run
from headstart.errors import MissingExtraError, ModelError, OptionError
from tests.generation.tiny import tiny


@pytest.fixture
def setup(tmp_path) -> Setup:
    return Setup(source=tmp_path / "m.gguf", llm=tiny(drafter="none"), threads=2, context=64)


def with_(setup: Setup, **changes) -> Setup:
    return Setup(**{**vars(setup), **changes})


def test_transformers_hands_out_rounds() -> None:
    """The prompt it hands over first is no token; what follows is a round a call."""
    timer = Timer()
    streamer = Streamer(timer)
    streamer.put(np.array([[7, 8, 9]]))
    streamer.put(np.array([1]))
    streamer.put(np.array([2, 3]))
    streamer.end()
    answer = timer.answer(max_tokens=9)
    assert (answer.token_ids, answer.rounds) == ((1, 2, 3), 2)


def test_llama_cpp_is_driven_as_its_binding_wants(monkeypatch, setup) -> None:
    """A stand-in with the binding's names: greedy and unpenalised, our own prompt ids, stopped at the limit."""
    seen: dict = {}

    class Llama:
        def __init__(self, **options) -> None:
            seen["load"] = options

        def set_seed(self, seed) -> None:
            seen["seed"] = seed

        def generate(self, ids, **options):
            seen["ids"], seen["sampling"] = ids, options
            yield from [5, 6, 7, 8]

    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=Llama, __version__="1"))
    answer = LlamaCppWay(setup).answer("hi", max_tokens=3, temperature=0.0, seed=4)
    assert (answer.token_ids, answer.rounds) == ((5, 6, 7), 3)
    assert seen["ids"] == setup.llm.prompt_ids("hi")
    assert (seen["load"]["n_threads"], seen["load"]["n_ctx"], seen["seed"]) == (2, 64, 4)
    assert (seen["sampling"]["temp"], seen["sampling"]["repeat_penalty"]) == (0.0, 1.0)
    monkeypatch.setenv("PATH", "")
    peer = llamacpp.open_peer(with_(setup, gammas=(3,), looks_up=True))
    assert [way.name for way in peer.ways] == ["llama.cpp"]
    assert peer.about == {"version": "1"}
    assert "llama-speculative-simple is not on the search path" in peer.lacks[0]


def program(folder, body: str) -> None:
    """A stand-in for llama.cpp's program, on the search path."""
    file = folder / llamacpp.PROGRAM
    file.write_text(f"#!{sys.executable}\nimport sys\n{body}\n", encoding="utf-8")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def test_llama_cpps_program_tells_its_own_speed(monkeypatch, setup, tmp_path) -> None:
    """The prompt with its marks is handed over, cut from what comes back, and its seconds are taken."""
    program(
        tmp_path,
        "prompt = sys.argv[sys.argv.index('-p') + 1]\n"
        "print('\\n\\n' + prompt + 'one two', end='\\n\\n')\n"
        "print('decoded   64 tokens in    0.500 seconds, speed:  128.000 t/s', file=sys.stderr)\n"
        "print(' '.join(sys.argv[1:]).replace(prompt, ''), file=open(sys.argv[0] + '.seen', 'w'))",
    )
    way = LlamaProgramWay(tmp_path / llamacpp.PROGRAM, setup, name="ngram", draft=None, gamma=3)
    answer = way.answer("hello", max_tokens=8, temperature=0.0, seed=5)
    tokenizer = setup.llm.tokenizer
    assert tokenizer is not None
    assert answer.token_ids == tuple(tokenizer.encode("one two"))
    assert (answer.seconds, answer.timed_tokens, answer.rounds) == (0.5, 64, None)
    assert way.name == "llama.cpp ngram γ=3"
    seen = (tmp_path / f"{llamacpp.PROGRAM}.seen").read_text(encoding="utf-8").split()
    assert seen[seen.index("--temp") + 1] == "0"
    assert seen[seen.index("-n") + 1] == "8"
    assert seen[seen.index("--spec-type") + 1] == "ngram-simple"
    program(tmp_path, "print('no such model', file=sys.stderr); sys.exit(1)")
    with pytest.raises(ModelError, match="did not say how fast it was; the last it said is no such model"):
        way.answer("hello", max_tokens=8, temperature=0.0, seed=5)
    monkeypatch.setitem(sys.modules, "llama_cpp", types.SimpleNamespace(Llama=lambda **options: None, __version__="1"))
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    drafts = (("model:a", tmp_path / "a.gguf"), ("model:b", tmp_path))
    peer = llamacpp.open_peer(with_(setup, gammas=(2, 3), looks_up=True, drafts=drafts))
    names = ["llama.cpp", "llama.cpp ngram γ=2", "llama.cpp ngram γ=3", "llama.cpp model:a γ=2", "llama.cpp model:a γ=3"]
    assert [way.name for way in peer.ways] == names
    assert "llama.cpp with model:b is left out" in peer.lacks[0]


class Pipeline:
    """OpenVINO's pipeline, as far as a way uses it."""

    made: list = []  # noqa: RUF012 (what was asked for, of every one)

    def __init__(self, file, device, **options) -> None:
        if "broken" in file:
            raise RuntimeError("Check failed at somewhere:\n[load_gguf] gguf_tensor_to_f16 failed\n")
        self.options = options
        Pipeline.made.append(self)

    def generate(self, ids, config, streamer) -> None:
        self.ids, self.config = ids, config
        streamer.write(3)
        streamer.write([4, 5])
        streamer.end()


@pytest.fixture
def vino(monkeypatch) -> None:
    Pipeline.made.clear()
    status = types.SimpleNamespace(RUNNING="running")
    engine = types.SimpleNamespace(
        LLMPipeline=Pipeline,
        GenerationConfig=types.SimpleNamespace,
        StreamerBase=object,
        StreamingStatus=status,
        __version__="2",
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", engine)
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(Tensor=lambda array: array))


@pytest.mark.usefixtures("vino")
def test_openvino_is_driven_as_its_pipeline_wants(setup) -> None:
    """Our own prompt ids and end tokens, greedy or sampled from the whole row; prompt lookup where ours looks up."""
    answer = OpenVinoWay(setup, name="openvino").answer("hi", max_tokens=3, temperature=0.0, seed=4)
    assert answer.token_ids == (3, 4, 5)
    (pipeline,) = Pipeline.made
    assert pipeline.ids.tolist() == [setup.llm.prompt_ids("hi")]
    assert (pipeline.config.max_new_tokens, pipeline.config.do_sample) == (3, False)
    assert pipeline.options == {"INFERENCE_NUM_THREADS": 2}
    peer = openvino.open_peer(with_(setup, gammas=(3,), looks_up=True, drafts=(("model:x", setup.source),)))
    assert [way.name for way in peer.ways] == ["openvino", "openvino ngram γ=3"]
    peer.ways[1].answer("hi", max_tokens=3, temperature=1.0, seed=4)
    looking = Pipeline.made[-2] if Pipeline.made[-2].options.get("prompt_lookup") else Pipeline.made[-1]
    assert (looking.config.num_assistant_tokens, looking.config.do_sample, looking.config.top_p) == (3, True, 1.0)
    assert peer.lacks == ("openvino with model:x is left out: its draft models are not GGUF files",)


@pytest.mark.usefixtures("vino")
def test_those_that_cannot_take_part_are_left_out(monkeypatch, setup) -> None:
    """One line each while another takes part; an error where none does."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    found, left_out = open_peers(["llama.cpp", "openvino"], setup)
    assert [peer.name for peer in found] == ["openvino"]
    assert "llama-cpp-python" in left_out["llama.cpp"]
    assert "pip install" in left_out["llama.cpp"]
    with pytest.raises(ModelError, match="llama-cpp-python"):
        open_peers(["llama.cpp"], setup)
    broken = with_(setup, source=setup.source.with_name("broken.gguf"))
    with pytest.raises(ModelError, match=r"openvino cannot read broken.gguf: \[load_gguf\] gguf_tensor_to_f16 failed"):
        open_peers(["openvino"], broken)
    with pytest.raises(OptionError, match=r"`against` must be one of llama.cpp, transformers, openvino, got 'lama.cpp'; did you"):
        check_peers(["lama.cpp"])


def test_a_peer_nobody_installed_is_told_before_a_model_is_read(monkeypatch, capsys) -> None:
    """One line with the way out; with another engine installed the run goes on to the model."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    assert run(["bench", "speed", "--target", "./no-such.gguf", "--against", "llama.cpp,openvino"]) == 1
    error = capsys.readouterr().err
    assert error == (
        "error: --against llama.cpp needs the package `llama-cpp-python`, which is not installed: "
        "pip install 'headstart[bench]'\n"
    )
    assert run(["bench", "speed", "--target", "./no-such.gguf", "--against", "llama.cpp,transformers"]) == 1
    assert "no-such" in capsys.readouterr().err


def test_peers_that_are_not_there(monkeypatch, setup) -> None:
    """A package that is missing, a folder where a file is read."""
    for module, name in (("llama_cpp", "llama.cpp"), ("openvino_genai", "openvino")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(MissingExtraError, match="pip install"):
                (llamacpp if name == "llama.cpp" else openvino).open_peer(setup)
        with pytest.raises(ModelError, match=r"reads .gguf files"):
            open_peers([name], with_(setup, source=setup.source.parent))
