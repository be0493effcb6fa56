"""Many rows at once, each with its own controls in tensors: the laws of `distribution` and the tokens of `draw`, on either implementation.

`distribution` takes its controls as Python numbers, so a batch of unlike requests is a loop. Here a row's temperature, top_k, top_p and min_p
are entries of tensors: one graph, or one launch, serves any mixture. The reference sorts, has no shape that depends on data and never waits
for a device; the kernels (`specdec_kernels.laws_triton`, `specdec_kernels.sample_triton`) do not sort.
"""

import torch

from specdec_fn.sampling.truncation import SLACK
from specdec_fn.typing import Bool, Float, Int, Tensor
from specdec_kernels.dispatch import chosen

__all__ = ["laws", "sample"]

COLDEST = 2.0**-1000  # 1 / temperature stays finite; any two logits of 32 bits or fewer are too far apart for it to matter


def laws(
    logits: Float[Tensor, "rows vocab"],
    temperature: Float[Tensor, "rows"],
    top_k: Int[Tensor, "rows"],
    top_p: Float[Tensor, "rows"],
    min_p: Float[Tensor, "rows"],
    *,
    dtype: torch.dtype = torch.float64,
    cuts: bool = True,
    impl: str = "auto",
) -> Float[Tensor, "rows vocab"]:
    """Turns rows of logits into the probabilities that sampling draws from, as `distribution` does for one row with the same four controls.

    Computed in float64 whatever the storage. Values of controls are checked where looking at them waits for nothing: on a CPU, outside traced
    code.

    Args:
        logits: float32, float16 or bfloat16 (the reference also takes float64); -inf forbids a token.
        temperature: float64 or float32, finite, at least 0; 0 takes the largest logit, the lowest id among equals.
        top_k: int64 or int32, at least 0; 0 keeps all.
        top_p: float64 or float32, in (0, 1]; 1 keeps all. A float32 is taken at its exact value, which may miss the decimal by 3e-8.
        min_p: float64 or float32, in [0, 1]; 0 keeps all.
        dtype: of the result, float32 or float64.
        cuts: False is the caller's word that top_k, top_p and min_p are off in all rows; the reference then sorts nothing.
        impl: "auto", "torch" or "triton".

    Returns:
        One law a row; zeros for a row with a NaN or +inf, or in which nothing is allowed.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: a shape that does not fit, a value out of range, tensors on two devices, an impl that cannot run.

    >>> one = torch.ones(2)
    >>> laws(torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log().expand(2, 4), one, torch.tensor([2, 0]), one, 0 * one, dtype=torch.float32)
    tensor([[0.3750, 0.0000, 0.0000, 0.6250],
            [0.3000, 0.1000, 0.1000, 0.5000]])
    """
    way = chosen(impl, logits, temperature, top_k, top_p, min_p)
    if dtype not in (torch.float32, torch.float64):
        raise TypeError(f"dtype is {dtype}; expected torch.float32 or torch.float64")
    _check(way, logits, temperature, top_k, top_p, min_p)
    if way == "triton":
        from specdec_kernels import laws_triton

        return laws_triton.laws(logits, temperature, top_k, top_p, min_p, dtype=dtype)
    return (_laws(logits, temperature, top_k, top_p, min_p) if cuts else _whole(logits, temperature)).to(dtype)


def sample(
    logits: Float[Tensor, "rows vocab"],
    temperature: Float[Tensor, "rows"],
    top_k: Int[Tensor, "rows"],
    top_p: Float[Tensor, "rows"],
    min_p: Float[Tensor, "rows"],
    words: Int[Tensor, "rows"],
    *,
    impl: str = "auto",
) -> Int[Tensor, "rows"]:
    """Draws a token from the law of each row, as `draw` does from float64 probabilities with u = the upper 53 bits of a word, times 2**-53.

    The two implementations add in other orders: a u within their rounding of an edge between two tokens may fall to either.

    Args:
        logits: as in `laws`.
        temperature: as in `laws`.
        top_k: as in `laws`.
        top_p: as in `laws`.
        min_p: as in `laws`.
        words: int64, 64 random bits a row.
        impl: "auto", "torch" or "triton".

    Returns:
        int64; -1 for a row with a NaN or +inf, or in which nothing is allowed.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: as in `laws`; a vocabulary over 1,048,576 in the kernel.

    >>> one = torch.ones(2)
    >>> logits = torch.tensor([[0.3, 0.1, 0.1, 0.5]]).log().expand(2, 4)
    >>> sample(logits, one, torch.tensor([2, 0]), one, 0 * one, torch.tensor([0, -1]))
    tensor([0, 3])
    """
    way = chosen(impl, logits, temperature, top_k, top_p, min_p, words)
    _check(way, logits, temperature, top_k, top_p, min_p)
    if words.dtype != torch.int64:
        raise TypeError(f"words is {words.dtype}; expected torch.int64")
    if words.shape != logits.shape[:1]:
        raise ValueError(f"words has shape {list(words.shape)}; expected one word for each of the {logits.shape[0]} rows of logits")
    if way == "triton":
        from specdec_kernels import sample_triton

        return sample_triton.sample(logits, temperature, top_k, top_p, min_p, words)
    uniform = ((words >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
    sums = _laws(logits, temperature, top_k, top_p, min_p).cumsum(-1)
    total = sums[:, -1]
    height = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    token = torch.searchsorted(sums, height.unsqueeze(-1), right=True).squeeze(-1)
    return torch.where(total > 0, token, -1)


def _laws(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """float64 laws, by sorting."""
    vocab = logits.shape[1]
    x = logits.to(torch.float64)
    heat, share, ratio = (control.to(torch.float64).unsqueeze(-1) for control in (temperature, top_p, min_p))
    count = top_k.to(torch.int64).unsqueeze(-1)
    best, first = x.amax(-1, keepdim=True), x.argmax(-1, keepdim=True)
    least = x.sort(dim=-1, descending=True).values.gather(-1, count.clamp(1, vocab) - 1)
    x = torch.where((count > 0) & (count < vocab) & (x < least), -torch.inf, x)
    probs = _normalised(((x - best) / torch.where(heat > 0, heat.clamp(min=COLDEST), 1.0)).exp())
    ranked, rank = probs.sort(dim=-1, descending=True, stable=True)
    last = (ranked.cumsum(-1) < share - SLACK).sum(-1, keepdim=True)
    prefix = torch.zeros_like(probs, dtype=torch.bool).scatter(-1, rank, torch.arange(vocab, device=x.device).expand_as(probs) <= last)
    probs = _cut(probs, prefix | (share >= 1))
    probs = _cut(probs, (probs >= ratio * (1 - SLACK) * probs.amax(-1, keepdim=True)) | (ratio <= 0))
    one_hot = torch.zeros_like(probs).scatter(-1, first, 1.0)
    return torch.where(torch.isfinite(best), torch.where(heat > 0, probs, one_hot), 0.0)


def _whole(logits: Tensor, temperature: Tensor) -> Tensor:
    """float64 laws in which every token stays."""
    x, heat = logits.to(torch.float64), temperature.to(torch.float64).unsqueeze(-1)
    best, first = x.amax(-1, keepdim=True), x.argmax(-1, keepdim=True)
    probs = ((x - best) / torch.where(heat > 0, heat.clamp(min=COLDEST), 1.0)).softmax(-1)
    one_hot = torch.arange(x.shape[1], device=x.device) == first
    return torch.where(torch.isfinite(best), torch.where(heat > 0, probs, one_hot.to(torch.float64)), 0.0)


def _cut(probs: Tensor, keep: Bool[Tensor, "rows vocab"]) -> Tensor:
    return _normalised(torch.where(keep, probs, 0.0))


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.cumsum(-1)[:, -1:]


def _check(way: str, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Refuses shapes and dtypes that do not fit, and values out of range where they can be seen."""
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits has shape {list(logits.shape)}; expected [rows, vocab], with a vocabulary of at least one token")
    stored = (torch.float32, torch.float16, torch.bfloat16)
    if logits.dtype not in stored and (way == "triton" or logits.dtype != torch.float64):
        raise TypeError(f"logits is {logits.dtype}; expected torch.float32, torch.float16 or torch.bfloat16")
    controls = (("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("min_p", min_p))
    for name, control in controls:
        kinds = (torch.int64, torch.int32) if name == "top_k" else (torch.float64, torch.float32)
        if control.dtype not in kinds:
            raise TypeError(f"{name} is {control.dtype}; expected {kinds[0]} or {kinds[1]}")
        if control.shape != logits.shape[:1]:
            raise ValueError(f"{name} has shape {list(control.shape)}; expected one value for each of the {logits.shape[0]} rows of logits")
    if any(_hidden(control) for _, control in controls):
        return
    ranges = (
        ("finite numbers of at least 0", (temperature >= 0) & (temperature < torch.inf)),
        ("numbers of at least 0", top_k >= 0),
        ("numbers in (0, 1]", (top_p > 0) & (top_p <= 1)),
        ("numbers in [0, 1]", (min_p >= 0) & (min_p <= 1)),
    )
    for (name, control), (expected, met) in zip(controls, ranges, strict=True):
        if not met.all():
            raise ValueError(f"{name} holds {control[~met][0].item()}; expected {expected}")


def _hidden(tensor: Tensor) -> bool:
    """Whether the values are on a device that would have to be waited for, or are not there yet: traced, fake, or inside vmap."""
    traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return traced or type(tensor) is not Tensor or tensor.device.type != "cpu"
