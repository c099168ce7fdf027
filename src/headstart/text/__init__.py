"""Text and token ids: tokenizers, chat templates, streaming text, stop strings.

    tokenizer   `Tokenizer`, what the rest of Headstart uses: encode, chat, decode, end tokens
    stream      `Transcript`, `TextStream`, `StopStrings`: tokens into text, one at a time
    stopper     when a text ends, and what each token released
    vocabulary  whether two tokenizers mean the same by an id
    crossing    tokens that two vocabularies share, a text of one as tokens of the other
    folder, gguf_tokenizer   where a tokenizer comes from; each returns `Parts`
    gguf        the metadata of a GGUF file
    chat, literal, decoding  templates in a sandbox, text that must not become a special token, token → bytes

It knows nothing of models or logits.
"""

from headstart.text.crossing import Crossing
from headstart.text.gguf import read_metadata
from headstart.text.stopper import TextStopper
from headstart.text.stream import Piece, StopStrings, TextStream, Transcript
from headstart.text.tokenizer import Message, Tokenizer
from headstart.text.vocabulary import check_same_vocabulary, vocabulary_difference

__all__ = [
    "Crossing",
    "Message",
    "Piece",
    "StopStrings",
    "TextStopper",
    "TextStream",
    "Tokenizer",
    "Transcript",
    "check_same_vocabulary",
    "read_metadata",
    "vocabulary_difference",
]
