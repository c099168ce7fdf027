"""Chat templates: messages → one text, by the model's own jinja template, run in jinja's sandbox.

The environment is the one templates are written for (transformers' `apply_chat_template`). A template comes with a model
file and is code of a stranger: it cannot reach Python, but it can take long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headstart.errors import InputError, ModelError

__all__ = ["ChatTemplate"]


class ChatTemplate:
    """A compiled template. Raises ModelError if it cannot be compiled; `source` names the file in errors."""

    def __init__(self, template: str, tokens: Mapping[str, str], source: str) -> None:
        self._tokens = dict(tokens)
        self._source = source
        try:
            self._template = _environment().from_string(template)
        except jinja2.TemplateError as error:
            raise ModelError(f"{source} has a chat template that cannot be compiled ({error}); use --raw") from None

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """The conversation as text. Raises InputError, in the template's words, if the template refuses it."""
        try:
            return self._template.render(
                **self._tokens,
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
            )
        except Exception as error:  # whatever a stranger's code can raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"`messages` are refused by the chat template of {self._source}: {reason}") from None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks the assistant's words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
