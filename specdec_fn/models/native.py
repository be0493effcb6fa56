"""What lies between two attentions as one call of the C library: the fused step of a pass of few rows on a CPU.

In operators a pass of SmolLM2-135M is about 1,100 calls, which cost as much as reading its weights; here it is 32 and the attentions, or one where
attention says beforehand what it does (``whole``). Activations
are float32 whatever the weights are, rows are multiplied as they stream by (``specdec_kernels/c/rows.h``), and a row's bits depend on no other row.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as torch_pytree

from specdec_fn.models.config import Config
from specdec_fn.models.rowwise import Between
from specdec_fn.typing import Float, Int, Tensor
from specdec_kernels import native
from specdec_kernels.dispatch import untraced
from specdec_kernels.packed import Packed
from specdec_kernels.step import TYPES, Matrix, Step, matrix, place, run
from specdec_kernels.whole_pass import whole_pass

if TYPE_CHECKING:
    from specdec_fn.models.llama import Layer, Params

__all__ = ["Laid", "Native"]

KINDS = (Tensor, torch.nn.Parameter)
FEW = 32  # rows up to which the library is faster than torch's products of plain numbers; measured on two cores


class Native(NamedTuple):
    """The library's form of a model, if it has one.

    Attributes:
        config: sizes.
        frequencies: of the rotation, in radians a position.
        factor: what cos and sin are multiplied by.
        laid: parameters whose layout is prepared; others are laid out in each pass.
        invariant: every pass goes through the library, and waits for it: bits must not depend on the number of rows.
        never: none does.
    """

    config: Config
    frequencies: Tensor
    factor: float
    laid: "Laid"
    invariant: bool = False
    never: bool = False

    def _laid(self, params: "Params", rows: int, *tensors: Tensor) -> "Laid | None":
        """The parameters as the library sees them, or None where the pass must go through torch.

        That is: traced or transformed tensors, a wanted gradient, another device or dtype, many rows of plain numbers (but in the invariant form),
        or no library.
        """
        if self.never or params.norm.dtype not in TYPES or not (self.invariant or rows <= FEW or isinstance(params.layers[0].qkv, Packed)):
            return None
        if not untraced(*tensors, params.norm) or not (native.wait() if self.invariant else native.ready()):
            return None
        if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in torch_pytree.tree_iter((params, tensors)) if isinstance(leaf, Tensor)):
            return None
        laid = self.laid if self.laid.of(params) else Laid(self.config, params)
        return laid if laid.steps else None

    def between(self, params: "Params", x: Float[Tensor, "tokens width"]) -> Between | None:
        """The library's functions for a pass whose attention is anybody's, or None where the pass must go through torch."""
        laid = self._laid(params, x.shape[0], x)
        return None if laid is None else laid.functions(self)

    def whole(
        self,
        params: "Params",
        tokens: Int[Tensor, "tokens"],
        positions: Int[Tensor, "tokens"],
        kv: Any,
        attend: Any,
        *,
        wanted: Int[Tensor, "wanted"] | None = None,
        keys_only: bool = False,
    ) -> Float[Tensor, "wanted vocab"] | bool:
        """The whole pass as one call, where attention says beforehand what it will do (``attend.planned``); False where it cannot be. DONATES ``kv``.

        Returns:
            the logits; True with ``keys_only``; False where nothing was done.
        """
        say = getattr(attend, "planned", None)
        laid = None if say is None else self._laid(params, tokens.shape[0], tokens, positions)
        if laid is None or say is None or tokens.dtype is not torch.int64 or laid.embedding is None or positions.shape != tokens.shape:
            return False
        plan = say(kv, tokens.shape[0], params.norm.dtype, self.invariant)
        if plan is None or len(plan.keys) < len(params.layers):
            return False
        if wanted is not None:
            wanted = torch.arange(tokens.shape[0])[wanted]  # of any form that picks rows, checked
        places = (tokens.contiguous(), self.turned(positions))
        logits = whole_pass(laid.steps, plan, laid.embedding, *places, vocab=self.config.vocab_size, wanted=wanted, keys_only=keys_only)
        return True if logits is None else logits

    def turned(self, positions: Int[Tensor, "tokens"]) -> tuple[Tensor, Tensor]:
        """cos and sin of every token's rotation."""
        angle = positions.to(torch.float64).unsqueeze(1) * self.frequencies  # float64, so that far positions keep their digits
        return angle.cos().mul_(self.factor).to(torch.float32), angle.sin().mul_(self.factor).to(torch.float32)


class Laid:
    """A model's parameters as the library sees them: addresses and sizes, one ``Step`` for each call of a pass.

    It is derived from the parameters, and made anew where it is copied or where they have moved.
    """

    def __init__(self, config: Config, params: "Params | None") -> None:
        self.config, self.params = config, params
        self.steps: Any = ()  # an array of Step, one piece of memory
        self.matrices: tuple[Matrix, ...] = ()
        self.embedding: Matrix | None = None
        self.where: tuple[Callable[[], int], ...] = ()
        self.places: list[int] = []
        if params is not None:
            self._lay(params)

    def __reduce__(self) -> tuple[Any, ...]:
        return Laid, (self.config, None)

    def of(self, params: "Params") -> bool:
        """Whether this is the layout of these parameters, and they are where they were."""
        return self.params is params and self.places == [where() for where in self.where]

    def _lay(self, params: "Params") -> None:
        laid = [[matrix(weight) for weight in (layer.qkv, layer.output, layer.gate_up, layer.down)] for layer in params.layers]
        last = matrix(params.embedding if params.head is None else params.head)
        vectors = [vector for layer in params.layers for vector in _vectors(layer)] + [params.norm]
        kept = params.norm.dtype
        plain = all(v is None or (v.dtype is kept and v.is_contiguous() and v.device.type == "cpu" and type(v) in KINDS) for v in vectors)
        if not plain or kept not in TYPES or last is None or any(one is None for four in laid for one in four) or self.config.head_dim % 2:
            return
        found = [one for four in laid for one in four if one is not None] + [last]
        self.matrices = tuple(found)
        steps = [self._blank(kept) for _ in range(len(params.layers) + 2)]
        for index, (layer, (qkv, output, gate_up, down)) in enumerate(zip(params.layers, laid, strict=True)):
            begin, end = steps[index], steps[index + 1]
            begin.qkv, begin.attention_norm = place(qkv), layer.attention_norm.data_ptr()
            begin.bias, begin.q_norm, begin.k_norm = (_at(vector) for vector in (layer.qkv_bias, layer.q_norm, layer.k_norm))
            end.output, end.gate_up, end.down, end.ffn_norm = place(output), place(gate_up), place(down), layer.ffn_norm.data_ptr()
        steps[-1].head, steps[-1].norm = place(last), params.norm.data_ptr()
        self.steps, self.embedding = (Step * len(steps))(*steps), matrix(params.embedding)
        leaves = [leaf for leaf in torch_pytree.tree_iter(params) if isinstance(leaf, Tensor)]
        self.where = tuple(leaf.data_ptr for leaf in leaves)
        self.places = [where() for where in self.where]

    def _blank(self, dtype: torch.dtype) -> Step:
        sizes = self.config
        return Step(
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            ffn=sizes.ffn,
            type=TYPES.index(dtype),
            eps=sizes.norm_eps,
        )

    def functions(self, model: Native) -> Between:
        """What a pass calls."""
        config, laid = self.config, self  # what a step points to lives as long as this does, so the functions hold it
        shape = (config.heads + 2 * config.kv_heads, config.head_dim)
        threads = torch.get_num_threads()

        def copied(number: int) -> Step:
            return Step.from_buffer_copy(laid.steps[number])

        def number_of(layer: "Layer") -> int:
            return next(number for number, one in enumerate(laid.params.layers) if one is layer)  # type: ignore[union-attr]

        def begun(step: Step, x: Tensor, dtype: torch.dtype, turned: tuple[Tensor, Tensor]) -> Tensor:
            if turned[0].shape[0] != x.shape[0]:
                raise ValueError(f"positions are {turned[0].shape[0]} for {x.shape[0]} tokens; expected one for each")
            heads = torch.empty((x.shape[0], *shape), dtype=dtype)
            step.cos, step.sin, step.turned = turned[0].data_ptr(), turned[1].data_ptr(), heads.data_ptr()
            return heads

        def begin(x: Float[Tensor, "tokens width"], layer: "Layer", turned: tuple[Tensor, Tensor]) -> Float[Tensor, "tokens all_heads head_dim"]:
            x, step = x.to(torch.float32).contiguous(), copied(number_of(layer))
            step.output = step.gate_up = step.down = step.attended = None
            heads = begun(step, x, layer.attention_norm.dtype, turned)
            step.rows, step.threads, step.x = x.shape[0], threads, x.data_ptr()
            run(step, laid)
            return heads

        def between(
            x: Float[Tensor, "tokens width"],
            attended: Float[Tensor, "tokens heads head_dim"],
            layer: "Layer",
            following: "Layer | None",
            turned: tuple[Tensor, Tensor],
        ) -> tuple[Float[Tensor, "tokens width"], Tensor | None]:
            dtype = layer.attention_norm.dtype
            x, attended, step = x.to(torch.float32).contiguous(), attended.to(dtype).contiguous(), copied(number_of(layer) + 1)
            if following is None:
                step.qkv = None
            out = torch.empty_like(x)
            heads = None if following is None else begun(step, x, dtype, turned)
            step.rows, step.threads, step.x, step.out, step.attended = x.shape[0], threads, x.data_ptr(), out.data_ptr(), attended.data_ptr()
            run(step, laid)
            return out, heads

        def head(x: Float[Tensor, "rows width"], params: "Params") -> Float[Tensor, "rows vocab"]:
            x, step = x.to(torch.float32).contiguous(), copied(-1)
            logits = torch.empty((x.shape[0], config.vocab_size), dtype=torch.float32)
            step.rows, step.threads, step.x, step.logits = x.shape[0], threads, x.data_ptr(), logits.data_ptr()
            run(step, laid)
            return logits

        return Between(model.turned, begin, between, head)


def _vectors(layer: "Layer") -> tuple[Tensor | None, ...]:
    return layer.attention_norm, layer.qkv_bias, layer.q_norm, layer.k_norm, layer.ffn_norm


def _at(vector: Tensor | None) -> int | None:
    return None if vector is None else vector.data_ptr()
