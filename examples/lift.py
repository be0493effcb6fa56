"""For the engineer: the rejection rule alone, over a batch, on tensors that any engine can hand over.

No model, no tokenizer, no cache of ours: laws and drafts go in, tokens come out. Run: python examples/lift.py
"""

import torch

from specdec_fn.random import fold_in, key
from specdec_fn.speculate import Draft, batched, verifiers


def verify_batch(request_seeds, positions, target_probs, draft_tokens, draft_probs, draft_lengths):
    """Verifies B drafts of up to K tokens at once.

    target_probs [B, K + 1, V], draft_tokens int64 [B, K], draft_probs [B, K, V] or None (one-hot), draft_lengths int64 [B].
    """
    rule, (batch, k) = verifiers["token"], draft_tokens.shape
    keys = fold_in(key(0), torch.tensor(request_seeds))  # one key a request
    tapes = torch.func.vmap(lambda one, base: rule.tape(one, k, target_probs.shape[-1], position=base))(keys, torch.tensor(positions))
    verdict = batched(rule.decide)(tapes, target_probs, Draft(draft_tokens, draft_probs, draft_lengths))
    return [verdict.tokens[i, : verdict.emitted[i]].tolist() for i in range(batch)]


def main() -> None:
    noise = torch.Generator().manual_seed(0)
    target = torch.randn(3, 5, 100, generator=noise, dtype=torch.float64).softmax(-1)
    drafted = target[:, :4].argmax(-1)
    lengths = [4, 2, 0]
    for row, emitted in enumerate(verify_batch([7, 8, 9], [12, 40, 3], target, drafted, None, torch.tensor(lengths))):
        print(f"request {row}: drafted {drafted[row, : lengths[row]].tolist()}, emitted {emitted}")


if __name__ == "__main__":
    main()
