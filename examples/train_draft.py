"""For the researcher: a draft head trained on the number that counts, the mean number of accepted tokens of block verification.

The estimator sums over every draft and every decision of the verifier, so its gradient is exact and nothing is sampled.
Run: python examples/train_draft.py
"""

import torch

from specdec_fn.speculate.expected import of_tables

VOCAB, K, WIDTH, STEPS = 5, 3, 2, 100


def target() -> torch.Tensor:
    """The next token's law after each pair of tokens, [V, V, V]: more than a head that sees little can copy."""
    noise = torch.Generator().manual_seed(0)
    return (1.5 * torch.randn(VOCAB, VOCAB, VOCAB, generator=noise, dtype=torch.float64)).softmax(-1)


def tables(row, k: int, context: tuple[int, int] = (0, 0)) -> list[torch.Tensor]:
    """Laws after every prefix of 0..k-1 tokens: entry i has shape [V] * (i + 1). ``row`` gives [V, V, V]: the law after two tokens."""
    a, b = context
    first, second = row[a, b], row[b]
    return [first, second, *(row.expand([VOCAB] * (i + 1)) for i in range(2, k))]


def draft_head(params: dict[str, torch.Tensor]) -> torch.Tensor:
    """A head of rank 2 that sees the last token alone."""
    logits = params["embed"] @ params["unembed"] + params["bias"]
    return logits.softmax(-1).expand(VOCAB, VOCAB, VOCAB)


def main() -> None:
    noise = torch.Generator().manual_seed(1)
    shapes = {"embed": (VOCAB, WIDTH), "unembed": (WIDTH, VOCAB), "bias": (VOCAB,)}
    params = {name: 0.1 * torch.randn(shape, generator=noise, dtype=torch.float64) for name, shape in shapes.items()}
    p = tables(target(), K)

    def accepted(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return of_tables(p, tables(draft_head(params), K)).block[-1]

    ascend = torch.func.grad(accepted)
    for step in range(STEPS + 1):
        if step % 25 == 0:
            found = of_tables(p, tables(draft_head(params), K))
            means = ", ".join(f"{name} {float(getattr(found, name)[-1]):.3f}" for name in ("token", "block", "bound"))
            print(f"step {step:3d}: mean accepted of {K} drafted: {means}")
        rate = 0.6 * (1 - step / (STEPS + 1))
        params = {name: params[name] + rate * slope for name, slope in ascend(params).items()}


if __name__ == "__main__":
    main()
