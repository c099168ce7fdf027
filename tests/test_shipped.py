"""Heads of the package: whole, small, made for the target they name, and better than no draft on prompts they never met."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import headstart
from headstart import fetch, shipped
from headstart.checkpoints import EagleHead, read_head
from headstart.drafters import EagleDrafter
from headstart.errors import ModelError
from headstart.models.native import NativeModel
from tests.native.random_gguf import shape_of, write

PROMPTS = ["How do noise-cancelling headphones work?", "What are the steps of changing a bicycle tyre?"]


@pytest.fixture(scope="module")
def llm() -> headstart.LLM:
    """The default target with its head."""
    if fetch.find("smollm2") is None:
        pytest.skip("smollm2 is not on this machine")
    return headstart.load("smollm2", drafter="eagle:smollm2", threads=1)


@pytest.mark.parametrize("name", shipped.names())
def test_every_head_is_whole_and_has_a_card(name) -> None:
    """A few megabytes that can be read, with a card that says what it was trained on and how to train it again."""
    folder = shipped.folder_of(name)
    assert folder is not None
    head = read_head(folder)
    assert isinstance(head, EagleHead)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 16_000_000
    card = (folder / "README.md").read_text(encoding="utf-8")
    for word in ("headstart train eagle", "Licence", "held-out", "Apache-2.0"):
        assert word in card


def test_a_head_is_known_by_its_target_s_weights(llm, tmp_path) -> None:
    """The name of a file plays no part: another model's fingerprint differs, and there is no head for it."""
    config = json.loads((Path(shipped.folder_of("smollm2")) / "config.json").read_text())
    assert shipped.fingerprint(llm.model) == config["headstart_target"]
    other = NativeModel.load(write(tmp_path / "smollm2.gguf", shape_of("llama"), "Q8_0").path, threads=1)
    assert shipped.fingerprint(other) != config["headstart_target"]
    assert shipped.matching(other) is None
    assert shipped.matching(object()) is None


def test_it_drafts_and_changes_nothing(llm) -> None:
    """Greedy text equals plain decoding's token by token, in fewer target calls."""
    assert isinstance(llm.drafter, EagleDrafter)
    plain = llm.with_drafter(headstart.NoDrafter())
    outputs = llm.generate(PROMPTS, max_tokens=40, gamma=3)
    tokens = sum(len(output.token_ids) for output in outputs)
    for output, prompt in zip(outputs, PROMPTS, strict=True):
        assert output.token_ids == plain.generate(prompt, max_tokens=40).token_ids
    assert tokens / sum(output.stats.num_rounds for output in outputs) > 1.15


def test_auto_is_a_look_up_and_the_head_behind_it(llm) -> None:
    """For the very target the head was made for; the text is plain decoding's."""
    auto = headstart.load("smollm2", threads=1)
    assert auto.drafter.name == "suffix+eagle:smollm2"
    out = auto.generate(PROMPTS[0], max_tokens=32, gamma=3)
    assert out.token_ids == llm.with_drafter(headstart.NoDrafter()).generate(PROMPTS[0], max_tokens=32).token_ids
    assert out.stats.num_drafted > 0


def test_a_head_there_is_not_is_an_error() -> None:
    """It says which there are."""
    with pytest.raises(ModelError, match="no head 'nosuch'"):
        headstart.load("smollm2", drafter="eagle:nosuch")


def cached(home: Path, ref: str, files: dict[str, Path]) -> None:
    """Put `files` where the hub's client keeps what it has fetched of `ref`."""
    owner, name = ref.split("/")
    repository, commit = home / f"models--{owner}--{name}", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    for file, source in files.items():
        shutil.copy(source, repository / "snapshots" / commit / file)


def test_a_head_of_a_hub_id(llm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in the hub's cache without a network; what is not there, or holds no weights, is refused in one line."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    own = shipped.folder_of("smollm2")
    assert own is not None
    cached(tmp_path, "someone/head", {name: own / name for name in ("config.json", "model.safetensors")})
    cached(tmp_path, "someone/empty", {"config.json": own / "config.json"})
    ours = headstart.load("smollm2", drafter="suffix+eagle:someone/head", threads=1, offline=True)
    assert ours.drafter.name == "suffix+eagle:someone/head"
    out = ours.generate(PROMPTS[0], max_tokens=12, gamma=3)
    assert out.token_ids == llm.generate(PROMPTS[0], max_tokens=12, gamma=3).token_ids
    assert out.stats.num_drafted > 0
    for ref, words in {
        "someone/empty": "holds no weights of a head",
        "someone/nothing": "someone/nothing is not on this machine .* drop --offline",
        "no/such/place": "no head 'no/such/place' here",
    }.items():
        with pytest.raises(ModelError, match=words):
            headstart.load("smollm2", drafter=f"eagle:{ref}", offline=True)
