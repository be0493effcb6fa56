"""Which of an operation's two implementations runs: the torch reference, or the Triton kernel beside it.

``"auto"`` takes the kernel where the tensors are on a GPU and triton is installed, and the reference everywhere else, and where a gradient is
wanted: kernels have none. Triton is imported by the first call that may need it, and by nothing else.
"""

from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Impl", "chosen", "one_device", "untraced"]

PLAIN = (Tensor, torch.nn.Parameter)
Impl = Literal["auto", "torch", "triton"]


def chosen(impl: str, *tensors: Tensor | None) -> Literal["torch", "triton"]:
    """Resolves ``impl`` for a call on these tensors.

    Args:
        impl: "auto", "torch" or "triton".
        tensors: the tensors of the call; None is passed over.

    Raises:
        ValueError: another name; tensors on several devices; "triton" without triton, without a GPU or triton's interpreter, or where a
            gradient is wanted.

    >>> import torch
    >>> chosen("auto", torch.zeros(3))
    'torch'
    """
    if impl not in ("auto", "torch", "triton"):
        raise ValueError(f"impl is {impl!r}; expected 'auto', 'torch' or 'triton'")
    device = one_device(*tensors)
    if impl == "torch" or (impl == "auto" and (device != "cuda" or _differentiated(*tensors) or find_spec("triton") is None)):
        return "torch"
    if find_spec("triton") is None:
        raise ValueError("impl is 'triton', and triton is not installed; pip install triton (3.7 or 3.8), or use impl='torch'")
    if _differentiated(*tensors):
        raise ValueError("impl is 'triton', and a tensor requires a gradient, which kernels do not have; expected impl='torch' or torch.no_grad()")
    if device != "cuda" and not (device == "cpu" and _interpreted()):
        raise ValueError(
            f"impl is 'triton', and the tensors are on the {device}; expected tensors on a GPU, impl='torch', or a process that was "
            "started with TRITON_INTERPRET=1, in which kernels are interpreted"
        )
    return "triton"


def one_device(*tensors: Tensor | None) -> str:
    """The kind of device that all tensors are on.

    Raises:
        ValueError: they are on several.

    >>> import torch
    >>> one_device(torch.zeros(3), None, torch.ones(2))
    'cpu'
    """
    devices = {tensor.device for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise ValueError(f"the tensors are on {' and '.join(sorted(map(str, devices)))}; expected one device")
    return devices.pop().type if devices else "cpu"


def untraced(*tensors: Tensor) -> bool:
    """Whether these are numbers in this machine's memory: on a CPU, and neither traced by a compiler nor wrapped by a transform of torch.func.

    >>> import torch
    >>> untraced(torch.zeros(3))
    True
    """
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(tensor) in PLAIN and tensor.device.type == "cpu" for tensor in tensors)


def _differentiated(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _interpreted() -> bool:
    from triton import knobs

    return bool(knobs.runtime.interpret)
