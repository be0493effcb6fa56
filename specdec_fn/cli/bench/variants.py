"""One model at several precisions: what a name such as ``bfloat16`` or ``q4_0`` loads, and how many bytes a pass then reads."""

from typing import Annotated, Any

import typer

from specdec_fn.cli.status import Status

__all__ = ["Dtype", "Quantize", "checked", "listed", "load_variant", "named", "weight_bytes"]

FLOATS = ("float32", "bfloat16")
KINDS = ("int8", "int4", "q8_0", "q4_0", "q4_1", "file")

Dtype = Annotated[str, typer.Option("--dtype", help="Numbers of the weights: float32 or bfloat16.")]
Quantize = Annotated[
    str, typer.Option("--quantize", help="Weights in few bits instead: int8, int4, q8_0, q4_0, q4_1, file (as the file has them), or none.")
]


def named(dtype: str, quantize: str = "none") -> str:
    """The variant that two options come to: the quantised kind where one is given, else the dtype.

    Raises:
        ValueError: an unknown dtype or kind.

    >>> named("bfloat16"), named("float32", "q4_0")
    ('bfloat16', 'q4_0')
    """
    if dtype not in FLOATS:
        raise ValueError(f"--dtype is {dtype!r}; expected one of {', '.join(FLOATS)}")
    if quantize not in ("none", *KINDS):
        raise ValueError(f"--quantize is {quantize!r}; expected one of {', '.join(KINDS)}, none")
    return dtype if quantize == "none" else quantize


def checked(option: str, name: str) -> str:
    """The name of a variant, or one sentence.

    Raises:
        ValueError: an unknown name.
    """
    if name not in (*FLOATS, *KINDS):
        raise ValueError(f"{option} names {name!r}; expected one of {', '.join((*FLOATS, *KINDS))}")
    return name


def listed(option: str, text: str) -> list[str]:
    """The variants of a list with commas, each once.

    Raises:
        ValueError: an unknown name.

    >>> listed("--variants", "float32,int8")
    ['float32', 'int8']
    """
    return list(dict.fromkeys(checked(option, name.strip()) for name in text.split(",")))


def load_variant(model: str, variant: str, *, wait: bool = True) -> tuple[Any, Any]:
    """The model and its tokenizer at one precision, with a line of progress on a terminal.

    Args:
        model: a name or a path.
        variant: of ``FLOATS`` or ``KINDS``.
        wait: until the C kernels are built or cannot be, so that what is measured is what there is to run.

    Raises:
        ValueError: as ``load``.
    """
    from specdec_fn.load import load
    from specdec_kernels import native

    with Status(f"loading {model}, {variant}"):
        loaded = load(model, dtype=variant) if variant in FLOATS else load(model, quantize=variant)
        if wait:
            native.wait()
        return loaded


def weight_bytes(model: Any) -> int:
    """Bytes of the parameters that a pass reads whole: all, but an embedding beside a head, of which it reads a few rows.

    >>> import torch
    >>> from specdec_fn.models import toy
    >>> weight_bytes(toy.bigram(torch.eye(4)))
    64
    """
    from torch.utils import _pytree as pytree

    def size(tree: Any) -> int:
        return sum(leaf.numel() * leaf.itemsize for leaf in pytree.tree_iter(tree) if hasattr(leaf, "numel"))

    params = model.params
    aside = params.embedding if getattr(params, "head", None) is not None else ()
    return size(params) - size(aside)
