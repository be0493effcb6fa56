"""For the researcher: an experiment made of functions. How does acceptance depend on temperature?

The law stays p whatever the proposer does (validate.py shows it).

A proposer of your own is a pair of functions; everything else is taken from the shelf. Run: python examples/compose.py
"""

import torch

from specdec_fn import SamplingParams, generate
from specdec_fn.models import toy
from specdec_fn.random import uniform
from specdec_fn.sampling import draw
from specdec_fn.speculate import Proposer
from specdec_fn.speculate.draft import chain
from specdec_fn.speculate.tape import DRAFT, address


def bigram_proposer(table: torch.Tensor) -> Proposer:
    """Draws a chain from a bigram table, and states the law it drew from, so that it may be verified with soft q."""

    def propose(key, state, tokens, k, *, position):
        noise, last, ids, laws = uniform(address(key, DRAFT, position), (k,)), tokens[-1], [], []
        for lane in range(k):
            laws.append(table[last])
            last = int(draw(noise[lane], table[last]))
            ids.append(last)
        return state, chain(ids, k, torch.stack(laws) if laws else table[:0])

    return Proposer("bigram", lambda prompt: (), propose)


def main() -> None:
    noise = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(16, 16, generator=noise, dtype=torch.float64)
    target = toy.bigram(logits.softmax(-1))
    drafter = bigram_proposer((logits + torch.randn(16, 16, generator=noise, dtype=torch.float64)).softmax(-1))
    print("temperature   tokens a pass   accepted")
    for temperature in (0.5, 1.0, 1.5):
        done = generate(target, [0], sampling=SamplingParams(temperature=temperature), proposer=drafter, k=4, max_tokens=400)
        print(f"{temperature:11.1f}   {done.stats.tokens_per_pass:13.2f}   {done.stats.acceptance_rate:8.0%}")


if __name__ == "__main__":
    main()
