"""gpt-fast's rule: ``speculative_decode`` of ``generate.py``, loaded from a checkout, since the project is no package.

Its two models are replaced by our tables. It drafts for itself by ``decode_n_tokens`` and runs the target by ``model_forward``; in a private
copy of the module, which no other importer sees, these hand over the draft and the target rows of the round.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from specdec_proofs.suspects.suspect import Round, Suspect, SuspectError

__all__ = ["NAME", "WHAT", "adapt", "load"]

NAME = "gpt-fast"
WHAT = "generate.speculative_decode of a gpt-fast checkout"
PARTS = ("speculative_decode", "decode_n_tokens", "model_forward")


def load(checkout: str | None = None) -> Suspect:
    """The rule of the checkout in folder ``checkout``; SuspectError where there is none.

    >>> load(None)
    Traceback (most recent call last):
    ...
    specdec_proofs.suspects.suspect.SuspectError: gpt-fast is no package; expected --checkout FOLDER with its generate.py
    """
    if checkout is None:
        raise SuspectError("gpt-fast is no package; expected --checkout FOLDER with its generate.py")
    file = Path(checkout) / "generate.py"
    if not file.is_file():
        raise SuspectError(f"{str(file)!r} is not there; expected the generate.py of a gpt-fast checkout")
    return Suspect(NAME, "gpt-fast, generate.speculative_decode", adapt(_module(file)))


def adapt(module: Any) -> Round:
    """The module as a round; its ``decode_n_tokens`` and ``model_forward`` are replaced, so it must be a private copy.

    >>> import types
    >>> made = types.SimpleNamespace(decode_n_tokens=None, model_forward=None)
    >>> made.speculative_decode = lambda *rest, **named: torch.cat(made.decode_n_tokens()[0])
    >>> adapt(made)(torch.eye(3), torch.eye(3)[:2], torch.tensor([0, 1])).tolist()
    [0, 1]
    """

    def rounds(p: torch.Tensor, q: torch.Tensor | None, tokens: torch.Tensor) -> Any:
        if q is None:
            raise SuspectError("needs the draft's laws; received none")
        ids, rows, logits = tokens.to(torch.int32), list(q), p.log()[None]
        module.decode_n_tokens = lambda *_, **__: ([ids[i : i + 1] for i in range(len(ids))], rows)
        module.model_forward = lambda *_, **__: logits
        return module.speculative_decode(None, None, torch.tensor(0), 0, len(tokens))

    return rounds


def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("_specdec_suspect_gpt_fast", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SuspectError(f"{str(file)!r} cannot be imported: {type(error).__name__}: {error}; expected what gpt-fast needs, installed") from error
    finally:
        sys.path[:] = before
    lacking = [part for part in PARTS if not callable(getattr(module, part, None))]
    if lacking:
        raise SuspectError(f"{str(file)!r} has no {', '.join(lacking)}; expected the generate.py of a gpt-fast checkout")
    return module
