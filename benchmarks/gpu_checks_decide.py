"""The checks of the kernels that decide tokens, against the engine's own laws in float64, and of the small steps of a pass."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from gpu_compare import STEP, Outcome, close, equal, normal, short
from gpu_machine import Machine, poisoned
from torch import Tensor

from specdec_fn.random import key
from specdec_fn.sampling import SamplingParams, distribution, draw
from specdec_fn.speculate import Draft, Race, Tape, batched, verifiers
from specdec_fn.speculate.race import noise as race_noise

__all__ = ["checks", "controls", "peaked"]

SAMPLERS = ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.05}, {"temperature": 0.0}, {"temperature": 1.7, "top_k": 50, "top_p": 0.8, "min_p": 0.01})


def checks(at: Machine) -> Iterator[tuple[str, Callable[[torch.Generator], Any]]]:
    """Names every check and the function that runs it."""
    for rule in ("token", "block", "coupled", "greedy"):
        for soft in (True, False) if rule in ("token", "block") else (False,):
            yield f"verify {rule}", partial(_verify, at, rule, soft)
    for dtype in (torch.bfloat16,) if at.rehearse else (torch.bfloat16, torch.float16, torch.float32):
        yield f"laws {dtype}", partial(_laws, at, dtype)
        yield f"rms_norm {dtype}", partial(_rms_norm, at, dtype)
        yield f"rope {dtype}", partial(_rope, at, dtype)
        yield f"gate {dtype}", partial(_gate, at, dtype)


def peaked(generator: torch.Generator, *shape: int) -> Tensor:
    """Random laws like those of a language model: float32, most of the mass on few tokens."""
    return (4 * torch.randn(shape, generator=generator, device=generator.device)).softmax(-1)


def uniform(words: Tensor) -> Tensor:
    """The uniforms of random words: their top 53 bits."""
    return ((words >> 11) & (2**53 - 1)).double() * 2.0**-53


def words(generator: torch.Generator, *shape: int) -> Tensor:
    """Random 64-bit words in int64."""
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=generator, device=generator.device)


def _verify(at: Machine, rule: str, soft: bool, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.verify_triton import verify

    batch, k, vocab = (3, 2, 7) if at.rehearse else (64, 4, 8_000 if rule == "coupled" else 32_000)
    target = peaked(generator, batch, k + 1, vocab)
    # A draft that is often right: half of its law is the target's.
    probs = (target[:, :k] + peaked(generator, batch, k, vocab)) / 2
    tokens = torch.multinomial(probs.flatten(0, 1), 1, generator=generator).view(batch, k)
    length = torch.randint(0, k + 1, (batch,), generator=generator, device=at.device)
    past = torch.arange(k, device=at.device) >= length[:, None]
    draft = Draft(tokens.masked_fill(past, -1), probs.masked_fill(past[:, :, None], float("nan")) if soft else None, length)
    wide = Draft(tokens, probs.double() if soft else None, length)
    decide = batched(verifiers[rule].decide)
    given: dict[str, Tensor] = {}
    if rule == "coupled":
        seeds = words(generator, batch)
        given = {"keys": torch.stack((seeds >> 32 & (2**32 - 1), seeds & (2**32 - 1)), 1)}
        given["position"] = torch.randint(0, 2**20, (batch,), generator=generator, device=at.device)
        rows = given["position"].cpu()[:, None] + torch.arange(k + 1)
        noise = torch.stack([race_noise(key(seed), row, vocab) for seed, row in zip(seeds.tolist(), rows, strict=True)]).to(at.device)
        verdict = decide(Race(noise), target.double(), wide)
    else:
        accept, final = words(generator, batch, k), words(generator, batch)
        given = {} if rule == "greedy" else {"accept": accept, "final": final}
        verdict = decide(Tape(uniform(accept), uniform(final)), target.double(), wide)
    if rule in ("coupled", "greedy"):
        draft = draft._replace(probs=None)
    poisoned([torch.empty(batch, k + 1, dtype=torch.int64, device=at.device), length])
    got = verify(rule, target, draft.tokens, draft.probs, draft.length, **given)  # type: ignore[arg-type]
    name = f"verify {rule}, {'soft' if soft else 'one-hot'} drafts, {batch} x {k} of {vocab}"
    yield equal(f"{name}, tokens", got[0], verdict.tokens)
    yield equal(f"{name}, accepted", got[1], verdict.accepted)


def controls(at: Machine, rows: int, setting: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four controls of a sampler, a number a row."""
    params = SamplingParams(**setting)

    def each(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((rows,), value, dtype=dtype, device=at.device)

    wide = torch.float64
    return each(params.temperature, wide), each(params.top_k, torch.int64), each(params.top_p, wide), each(params.min_p, wide)


def _laws(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.laws_triton import laws
    from specdec_kernels.sample_triton import sample

    rows, vocab = (2, 21) if at.rehearse else (16, 151_936)
    none = torch.zeros(0, dtype=torch.int64, device=at.device)
    for setting in SAMPLERS[-1:] if at.rehearse else SAMPLERS:
        logits = (3 * normal(generator, torch.float32, rows, vocab)).to(dtype)
        params = SamplingParams(**setting)
        want = torch.stack([distribution(row.double(), params, prompt=none, generated=none) for row in logits])
        drawn = words(generator, rows)
        given = controls(at, rows, setting)
        said = ", ".join(f"{key} {value}" for key, value in setting.items()) or "plain"
        poisoned([want.float(), drawn])
        yield close(f"laws {short(dtype)}, {said}", laws(logits, *given), want, STEP[torch.float32] * want + 1e-12)
        tokens = torch.stack([draw(u, law) for u, law in zip(uniform(drawn), want, strict=True)])
        poisoned([drawn])
        yield equal(f"sample {short(dtype)}, {said}", sample(logits, *given, drawn), tokens)


def _rms_norm(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.rms_norm import rms_norm

    for count, width in [(2, 80)] if at.rehearse else [(5, 4096), (3, 577)]:
        x, residual = (normal(generator, dtype, count, width) for _ in range(2))
        weight = normal(generator, dtype, width)
        total = x + residual
        for name, extra, rows in (("", None, x), (" and sum", residual, total)):
            wide = rows.double()
            want = wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
            poisoned([rows, rows])
            got = rms_norm(x, weight, 1e-5, impl="triton") if extra is None else rms_norm(x, weight, 1e-5, residual=extra, impl="triton")
            normed = got if isinstance(got, Tensor) else got[0]
            yield close(f"rms_norm{name} {short(dtype)} [{count}, {width}]", normed, want, STEP[dtype] * want.abs() + 4e-6 * want.abs())
            if not isinstance(got, Tensor):
                yield equal(f"rms_norm{name} {short(dtype)} [{count}, {width}], the sum", got[1], total)


def _rope(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.rope import rope

    count, heads, others, size = (2, 2, 1, 16) if at.rehearse else (5, 40, 8, 128)
    rows = normal(generator, dtype, count, heads + others, size)
    angle = 1000 * torch.rand(count, size // 2, generator=generator, device=at.device)
    cos, sin = angle.cos(), angle.sin()
    first, second = rows[:, :heads].double().chunk(2, -1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    want = torch.cat((torch.cat((first * c - second * s, second * c + first * s), -1), rows[:, heads:].double()), 1)
    size_of = torch.cat((first.abs() + second.abs(), first.abs() + second.abs()), -1)
    allowed = STEP[dtype] * want.abs() + torch.cat((2e-7 * size_of, 0 * rows[:, heads:].double()), 1) + 1e-30
    poisoned([rows])
    yield close(f"rope {short(dtype)}, {heads} of {heads + others} heads of {size}", rope(rows, cos, sin, heads=heads, impl="triton"), want, allowed)


def _gate(at: Machine, dtype: torch.dtype, generator: torch.Generator) -> Iterator[Outcome]:
    from specdec_kernels.gate import gate

    for count, ffn in [(2, 40)] if at.rehearse else [(5, 14_336), (3, 577)]:
        rows = 3 * normal(generator, dtype, count, 2 * ffn)
        first, second = rows.double().chunk(2, -1)
        want = first * first.sigmoid() * second
        poisoned([want.to(dtype)])
        yield close(f"gate {short(dtype)} [{count}, {ffn}]", gate(rows, impl="triton"), want, (STEP[dtype] + 2e-6) * want.abs() + 1e-30)
