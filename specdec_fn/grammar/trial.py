"""A grammar is built in a process of its own first: what takes too long there, or too much memory, or crashes it, is refused.

llguidance bounds most of its work, but not all: hundreds of patterns that must hold together, or a large ``multipleOf``, take it minutes, and a call
into it cannot be interrupted.
"""

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["LIMITS", "SECONDS", "refusal"]

SECONDS = 0.5  # of processor time
PATIENCE = 30.0  # seconds on the clock, where there is little of the processor
BYTES = 1 << 30

# Less than llguidance's own: a mask of a grammar at the limits takes about a tenth of a second, and an automaton some tens of MB.
LIMITS: MappingProxyType[str, Any] = MappingProxyType(
    {"initial_lexer_fuel": 200_000, "step_max_items": 10_000, "max_lexer_states": 20_000, "verbose_errors": False}
)

_CHILD = """
import json, sys
folder, seconds, size, limits, grammar = json.load(sys.stdin)
sys.path.append(folder)
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [bytes([i]) for i in range(256)] + [b"\\xfe256"]
    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)
tokens = LLTokenizer(TokenizerWrapper(Bytes()))
try:
    import resource, signal
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, seconds)
except ImportError:
    pass
made = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(**limits))
if not made.is_error():
    made.compute_bitmask()
sys.stdout.write(made.get_error())
"""


def refusal(grammar: str) -> str:
    """Why a grammar cannot be built; empty where it can.

    Args:
        grammar: as llguidance's ``LLMatcher`` takes it.

    >>> from llguidance import LLMatcher
    >>> refusal(LLMatcher.grammar_from_regex("a+")), refusal(LLMatcher.grammar_from_regex("(?=a)b"))
    ('', 'invalid regex: look-around, including look-ahead and look-behind, is not supported')
    """
    found = importlib.util.find_spec("llguidance")
    assert found is not None, "whoever wrote the grammar has it"
    assert found.origin is not None, "it is a package with a file"
    given = json.dumps([str(Path(found.origin).parent.parent), SECONDS, BYTES, dict(LIMITS), grammar])
    command = [sys.executable, "-I", "-S", "-c", _CHILD]  # no site: it starts in a tenth of a second
    try:
        ended = subprocess.run(command, input=given.encode(), capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return _SLOW
    if ended.returncode == 0:
        return said(ended.stdout.decode("utf-8", "replace"))
    return _SLOW if ended.returncode == -getattr(signal, "SIGPROF", 0) else "it takes too much memory, or too many levels"


_SLOW = f"it takes more than {SECONDS:g} seconds to build"


def said(error: str) -> str:
    """What llguidance said, in one line.

    >>> said("lexer error: too many states\\n<non-verbose/>")
    'lexer error: too many states'
    """
    if "NoExtension" in error:
        return "no text at all satisfies it"
    lines = [line.strip() for line in error.split("<backtrace>")[0].split("<non-verbose/>")[0].splitlines() if line.strip()]
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if reason is not None:
        return f"invalid regex: {reason}"
    return lines[0].removeprefix("panic: ")[:300] if lines else ""
