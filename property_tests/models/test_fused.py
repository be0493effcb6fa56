"""The row-wise steps as kernels give the pass that the steps of ``llama`` give."""

import dataclasses

import pytest
import torch

from specdec_fn.models import llama, logits, native
from specdec_fn.models.config import Config
from specdec_fn.models.fused import steps
from specdec_fn.models.llama import assemble, shapes
from specdec_fn.models.product import product
from specdec_fn.models.rowwise import Rowwise
from specdec_fn.random import fold_in, key, uniform

SIZES = Config("llama", vocab_size=19, context=32, width=24, layers=2, heads=3, kv_heads=1, head_dim=8, ffn=20, tied=True)


def models(config: Config, impl: str, dtype: torch.dtype) -> tuple[llama.Model, llama.Model]:
    """The same parameters, with the steps of ``llama`` and with those of ``fused``."""
    names = list(shapes(config))
    params = assemble(config, lambda name: (uniform(fold_in(key(3), names.index(name)), shapes(config)[name], torch.float32) - 0.4).to(dtype))
    plain = llama.model(config, params)
    fused = llama._between(config, params, Rowwise(product, *steps(config, impl=impl)))
    static = plain.apply.args[0]._replace(between=fused)  # type: ignore[attr-defined]
    return plain, plain._replace(**llama._forward(static)._asdict())


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("config", [SIZES, dataclasses.replace(SIZES, qk_norm=True, qkv_bias=True)], ids=["llama", "norms and biases"])
def test_the_pass_is_the_same(config: Config, impl: str, dtype: torch.dtype, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FEW", -1)  # neither through the C library
    plain, fused = models(config, impl, dtype)
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 18]
    found, wanted = logits(fused, ids), logits(plain, ids)
    assert wanted.abs().max() > 0.1
    assert (found - wanted).abs().max() <= share * wanted.abs().max()
    assert found.dtype is torch.float32
