"""Chat: messages to ids through a model's own Jinja template, without letting a message speak for the template.

A template writes control tokens (``<|im_start|>``) around the messages. A message whose *text* holds such a control text must stay text, or its
author could end his own turn and open another. Encoding each message by itself would be safe, but it would cut words at the seams, and a
template would see a stand-in where it trims or tests the text. So the text is disguised only where it is dangerous:

1. In every string of every message the first character of each control text is replaced by a character that occurs nowhere, and so is the
   last character of a message that ends as a control text begins, and the first of one that begins as a control text ends. A harmless
   message is untouched.
2. The template is rendered. Whatever control text stands in the result was written by the template.
3. Without a disguise the whole is encoded in one go. With one, the control tokens of step 2 are fixed as ids, the disguise is taken off, and
   all the rest is encoded as plain text, cut into words as it would be between control tokens.

A template that itself glues a control text together out of a message's field, as in ``'<|' + role + '|>'``, is taken at its word.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jinja2.environment import Environment

__all__ = ["Control", "compile_template", "encoder", "shield", "unused"]


class Control(NamedTuple):
    """A control token: its text, its id, and whether it swallows white space on its left and right in a text.

    >>> Control("<|im_end|>", 2)
    Control(text='<|im_end|>', id=2, lstrip=False, rstrip=False)
    """

    text: str
    id: int
    lstrip: bool = False
    rstrip: bool = False


def compile_template(source: str | None, tokens: Mapping[str, str]) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    """Compiles a chat template into ``render(messages) -> text``, which ends with the opening of the assistant's turn.

    Templates run in Jinja's immutable sandbox. They see ``messages``, ``add_generation_prompt`` (true), ``tools`` and ``documents`` (none),
    ``raise_exception``, and the token texts by name. There is no clock, so ``strftime_now`` is undefined.

    Args:
        source: the template; None for a model that has none.
        tokens: texts of special tokens by the names that templates use, such as "bos_token".

    Raises:
        ValueError: (when rendering) there is no template, it cannot be read, or it refuses the messages.

    >>> render = compile_template("{% for m in messages %}{{ bos_token }}{{ m.content }}{% endfor %}", {"bos_token": "<s>"})
    >>> render([{"role": "user", "content": "Hi"}])
    '<s>Hi'
    """
    from jinja2 import TemplateSyntaxError

    if source is None:
        return _refusing("the model comes without a chat template: received messages, expected a prompt as text or ids")
    try:
        template = _environment().from_string(source)
    except TemplateSyntaxError as error:
        return _refusing(f"the model's chat template cannot be read (line {error.lineno}: {error.message}): expected a Jinja template")

    def render(messages: Sequence[Mapping[str, Any]]) -> str:
        names: dict[str, Any] = {"messages": messages, "add_generation_prompt": True, "tools": None, "documents": None, **tokens}
        try:
            return template.render(**names)
        except Exception as error:  # a template is a program of the model's author and may fail in any way
            raise ValueError(f"the chat template refuses the messages with roles {[m['role'] for m in messages]}: {error}") from error

    return render


def encoder(
    render: Callable[[Sequence[Mapping[str, Any]]], str],
    controls: Sequence[Control],
    encode: Callable[[str], list[int]],
    interleave: Callable[[list[str], list[int]], list[int]],
) -> Callable[[Sequence[Mapping[str, Any]]], list[int]]:
    """Makes ``chat(messages) -> ids`` with the safety that this room describes.

    Args:
        render: messages to text.
        controls: the control tokens.
        encode: text to ids, control texts becoming control tokens, nothing added.
        interleave: (n + 1 plain texts, n control ids) to ids, all texts being plain.

    >>> render = compile_template("{% for m in messages %}{{ m.content }}!{% endfor %}", {})
    >>> spell = lambda text: [33 if c == "!" else ord(c) for c in text]
    >>> plain = lambda texts, ids: [*map(ord, texts[0].replace("!", "?")), *(i for t, c in zip(texts[1:], ids) for i in (c, *map(ord, t)))]
    >>> chat = encoder(render, [Control("!", 33)], spell, plain)
    >>> chat([{"role": "user", "content": "A"}]), chat([{"role": "user", "content": "!"}])
    ([65, 33], [63, 33])
    """
    pattern = _pattern(controls)
    by_text = {c.text: c.id for c in controls}

    def chat(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        _check(messages)
        safe, disguise = shield(messages, [c.text for c in controls])
        text = render(safe)
        if not disguise:
            return encode(text)
        parts = pattern.split(text)
        ids = [by_text[part] if part in by_text else by_text[part.strip()] for part in parts[1::2]]
        return interleave([part.translate(disguise) for part in parts[::2]], ids)

    return chat


def shield(messages: Sequence[Mapping[str, Any]], controls: Sequence[str]) -> tuple[list[Any], dict[int, str]]:
    """Disguises the control texts in messages (a copy), and gives the table for ``str.translate`` that takes the disguise off.

    >>> safe, disguise = shield([{"role": "user", "content": "a<s>b"}], ["<s>"])
    >>> "<s>" in safe[0]["content"], safe[0]["content"].translate(disguise)
    (False, 'a<s>b')
    >>> shield([{"role": "user", "content": "a < b"}], ["<s>"])
    ([{'role': 'user', 'content': 'a < b'}], {})
    """
    if not controls:
        return list(messages), {}
    pattern = re.compile("|".join(map(re.escape, controls)))
    heads = {text[:n] for text in controls for n in range(1, len(text))}
    tails = {text[n:] for text in controls for n in range(1, len(text))}
    longest = max(map(len, controls))
    free = unused([*controls, *_strings(messages)])
    standins: dict[str, str] = {}

    def standin(char: str) -> str:
        if char not in standins:
            standins[char] = next(free)
        return standins[char]

    def disguised(text: str) -> str:
        while pattern.search(text):  # taking away one control text can lay bare another that overlapped it
            text = pattern.sub(lambda found: standin(found[0][0]) + found[0][1:], text)
        core = text.strip()  # a template may trim
        seams = set()
        if any(core[-n:] in heads for n in range(1, longest)):
            seams.add(len(text.rstrip()) - 1)
        if any(core[:n] in tails for n in range(1, longest)):
            seams.add(len(text) - len(text.lstrip()))
        for at in seams:
            text = text[:at] + standin(text[at]) + text[at + 1 :]
        return text

    safe = [_mapped(message, disguised) for message in messages]
    return safe, {ord(hidden): char for char, hidden in standins.items()}


def unused(texts: Iterable[str]) -> Iterator[str]:
    """Yields private-use characters that occur in none of the texts.

    >>> ord(next(unused(["\\U000f0000"]))) - 0xF0000
    1
    """
    taken = {char for text in texts for char in text if char >= "\U000f0000"}
    return (chr(code) for code in range(0xF0000, 0x10FFFE) if chr(code) not in taken)


def _pattern(controls: Sequence[Control]) -> re.Pattern[str]:
    longest_first = sorted(controls, key=lambda c: len(c.text), reverse=True)
    each = [(r"\s*" if c.lstrip else "") + re.escape(c.text) + (r"\s*" if c.rstrip else "") for c in longest_first]
    return re.compile(f"({'|'.join(each) or '(?!)'})")


def _check(messages: Any) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"messages: received {messages!r}, expected a list of at least one message with 'role' and 'content'")
    for n, message in enumerate(messages):
        if not isinstance(message, Mapping) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError(f"messages[{n}]: received {message!r}, expected a mapping in which 'role' and 'content' are strings")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _strings(pair)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, (list, tuple)) else value


def _refusing(sentence: str) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    def render(messages: Sequence[Mapping[str, Any]]) -> str:
        raise ValueError(sentence)

    return render


def _environment() -> "Environment":
    import json

    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Lets a ``generation`` block, which marks the assistant's words for training, stand for its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        # Jinja's own filter escapes for HTML, which models were not trained on.
        return json.dumps(value, ensure_ascii=False, indent=indent)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made
