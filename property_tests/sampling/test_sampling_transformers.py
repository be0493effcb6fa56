"""distribution against the processors of transformers, where the two mean the same: away from ties at a cut."""

import pytest
import torch
import transformers

from specdec_fn.sampling import SamplingParams, distribution

NONE = torch.tensor([], dtype=torch.int64)
HISTORY = torch.tensor([3, 3, 17, 5, 900])
CASES = {
    "temperature": ({"temperature": 0.7}, [transformers.TemperatureLogitsWarper(0.7)]),
    "top_k": ({"top_k": 20}, [transformers.TopKLogitsWarper(20)]),
    "top_p": ({"top_p": 0.8}, [transformers.TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.05}, [transformers.MinPLogitsWarper(0.05)]),
    "typical_p": ({"typical_p": 0.6}, [transformers.TypicalLogitsWarper(0.6)]),
    "repetition": ({"repetition_penalty": 1.4}, [transformers.RepetitionPenaltyLogitsProcessor(1.4)]),
    "together": (
        {"repetition_penalty": 1.4, "temperature": 0.7, "top_k": 60, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8},
        [
            transformers.RepetitionPenaltyLogitsProcessor(1.4),
            transformers.TemperatureLogitsWarper(0.7),
            transformers.TopKLogitsWarper(60),
            transformers.TopPLogitsWarper(0.9),
            transformers.MinPLogitsWarper(0.02),
            transformers.TypicalLogitsWarper(0.8),
        ],
    ),
}


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("vocab", [1000, 9000])
def test_agrees_with_transformers(name, vocab):
    controls, processors = CASES[name]
    for seed in range(5):
        logits = 3 * torch.randn(vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        found = distribution(logits, SamplingParams(**controls), prompt=HISTORY[:2], generated=HISTORY[2:])
        scores = logits[None].clone()
        for processor in processors:
            scores = processor(HISTORY[None], scores)
        expected = scores[0].softmax(0)
        assert torch.equal(found > 0, expected > 0)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-15)
