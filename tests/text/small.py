"""Small tokenizers made in the tests, and a writer of GGUF files."""

from __future__ import annotations

import struct
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = "the cat sat on the mat, the end: über naïve 東京 😀 1234 END END. the then there ends\n" * 20
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ '<|turn|>' + message['role'] + '\n' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"
)


def byte_level_core() -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([WORDS], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    core.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "<|turn|>", "<|end|>")])
    start = core.token_to_id("<s>")
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    core.add_tokens([AddedToken("<think>", special=False, normalized=False), AddedToken("naïve!", normalized=False)])
    return core


def byte_fallback_core() -> Tokenizer:
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [*"▁abcdefghijklmnopqrstuvwxyzEND.,", "ü", "▁t", "▁th", "▁the", "he", "in"]
    vocab = {token: place for place, token in enumerate(["<unk>", "<s>", "</s>", *byte_tokens, *letters])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("h", "e"), ("i", "n")]
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return core


def gguf_bytes(values: dict[str, Any], version: int = 3) -> bytes:
    """A GGUF file without tensors."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def typed(value: Any) -> tuple[int, bytes]:
        match value:
            case bool():
                return 7, struct.pack("<?", value)
            case int():
                return 4, struct.pack("<I", value)
            case float():
                return 6, struct.pack("<f", value)
            case str():
                return 8, text(value)
            case list():
                inner = [typed(entry) for entry in value]
                kind = inner[0][0] if inner else 4
                return 9, struct.pack("<IQ", kind, len(value)) + b"".join(body for _, body in inner)
        raise TypeError(value)

    body = b""
    for key, value in values.items():
        kind, data = typed(value)
        body += text(key) + struct.pack("<I", kind) + data
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(values)) + body
