"""Verification of a whole batch at once: one door over a verifier's ``decide``, lifted by ``vmap``, and over the kernel that does the same.

The randomness of a pass is made before it, outside whatever is captured: raw 64-bit words, from which both implementations make the uniforms of the
verifier's own ``tape`` in float64; or, for ``coupled``, the keys and positions of the races, whose noise is made where it is used. Nothing here
depends on a value that is in a tensor: shapes are static, nothing waits for the device, and the torch path can be traced, exported and captured.

    drawn = words(keys, k, position)           outside          (races(keys, position) for coupled)
    verdict = decide_all(verifier, drawn, target_probs, draft)  inside
"""

from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from specdec_fn.random import Key, bits, key_data
from specdec_fn.speculate.draft import Draft
from specdec_fn.speculate.race import Race, noise
from specdec_fn.speculate.tape import ACCEPT, FINAL, Tape, address
from specdec_fn.speculate.verdict import Verdict
from specdec_fn.speculate.verifier import Verifier, batched
from specdec_fn.speculate.verifiers import block, coupled, greedy, token
from specdec_fn.typing import Int, Tensor
from specdec_kernels.dispatch import chosen

__all__ = ["Races", "Words", "decide_all", "races", "tape", "words"]

RULES = MappingProxyType({token.decide: "token", block.decide: "block", coupled.decide: "coupled", greedy.decide: "greedy"})  # those with a kernel
LONGEST, LARGEST = 31, 1 << 19  # drafted tokens and vocabulary that kernels take


class Words(NamedTuple):
    """The random words that one pass of a batch consumes, 64 bits each in int64.

    Attributes:
        accept: int64 [B, K], one for each drafted token.
        final: int64 [B], for the recovered or bonus token.
    """

    accept: Int[Tensor, "batch K"]
    final: Int[Tensor, "batch"]


class Races(NamedTuple):
    """Where the noise of a pass of ``coupled`` is found, for a batch; row i of sequence b races for ``position[b] + i``.

    Attributes:
        keys: int64 [B, 2], the two words of each request's key.
        position: int64 [B], the base of each pass, the number of tokens committed before it.
    """

    keys: Int[Tensor, "batch 2"]
    position: Int[Tensor, "batch"]


def words(key: Key, k: int, position: int | Int[Tensor, "..."]) -> Words:
    """Draws the words of a pass, at the addresses that ``tape`` of a verifier draws at.

    Args:
        key: the requests' keys, an array of B; or one key, for words without that axis.
        k: drafted tokens of the pass.
        position: int64 [B], the base of each pass; or one number.

    Raises:
        ValueError: as many positions as keys were expected.

    >>> from specdec_fn.random import key, split
    >>> keys = split(key(1), 2)
    >>> drawn = tape(words(keys, 3, torch.tensor([12, 7])))
    >>> drawn.accept[1].equal(token.verifier.tape(keys[1], 3, 100, position=7).accept)
    True
    """
    _check_positions(key, position)
    return Words(bits(address(key, ACCEPT, position), (k,), 64), bits(address(key, FINAL, position), (), 64))


def races(key: Key, position: Int[Tensor, "batch"]) -> Races:
    """The races of a pass, for ``coupled``.

    Args:
        key: the requests' keys, an array of B.
        position: int64 [B], the base of each pass.

    >>> from specdec_fn.random import key, split
    >>> races(split(key(1), 2), torch.tensor([12, 7])).keys.shape
    torch.Size([2, 2])
    """
    _check_positions(key, position)
    return Races(key_data(key), position.clone())


def tape(words: Words) -> Tape:
    """The uniforms of a pass in float64: the top 53 bits of each word.

    >>> tape(Words(torch.tensor([[0, 2**62]]), torch.tensor([-(2**63)])))
    Tape(accept=tensor([[0.0000, 0.2500]], dtype=torch.float64), final=tensor([0.5000], dtype=torch.float64))
    """
    return Tape(*(((word >> 11) & (2**53 - 1)).to(torch.float64) * 2.0**-53 for word in words))


def decide_all(verifier: Verifier, drawn: Words | Races | Race, target_probs: Tensor, draft: Draft, impl: str = "auto") -> Verdict:
    """Decides one pass of every sequence of a batch, in float64 whatever the dtype of the laws.

    Args:
        verifier: any of ``verifiers``. token, block, coupled and greedy have a kernel, for chains of up to 31 tokens.
        drawn: what the verifier consumes: ``Words``, or for ``coupled`` ``Races``, or a ``Race`` with noise [B, K + 1, V] in float64. ``greedy``
            takes ``Words`` like the others and reads none of them.
        target_probs: float32 or float64 [B, K + 1, V].
        draft: every field with a leading axis of B, integers of 32 or 64 bits; its nodes at or past ``length[b]`` are padding, whatever they
            hold. A length outside [0, K] is taken as the nearer end. An id outside the vocabulary is never looked up: a kernel rejects it, and
            on the torch path a rule that indexes by it ends in torch's own index error (on a GPU, an assertion of the device).
        impl: "torch", "triton", or "auto": the kernel where there is one and the tensors are on a GPU.

    Returns:
        A verdict of which every field has a leading axis of B.

    Raises:
        TypeError: no verifier, randomness of the wrong kind, or laws that are no floats of 32 or 64 bits.
        ValueError: shapes that do not fit, tensors on several devices, or impl="triton" for what has no kernel: another verifier, a tree, a
            longer draft. Values are not looked at: laws and ids are checked where they are made.

    >>> laws = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    >>> draft = Draft(torch.tensor([[0], [0]]), None, torch.tensor([1, 1]))
    >>> decide_all(token.verifier, Words(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)), laws, draft).tokens
    tensor([[ 0,  1],
            [ 1, -1]])
    """
    _check(verifier, drawn, target_probs, draft)
    draft = draft._replace(tokens=draft.tokens.to(torch.int64), length=draft.length.to(torch.int64))
    missing = _missing(verifier, target_probs, draft)
    if missing and impl == "triton":
        raise ValueError(f"impl is 'triton', and {missing}; expected impl='torch' or 'auto'")
    way = chosen("torch" if missing and impl == "auto" else impl, target_probs, *drawn, *(field for field in draft if field is not None))
    if way == "triton":
        return _by_kernel(RULES[verifier.decide], drawn, target_probs, draft)
    length = draft.length.clamp(0, draft.tokens.shape[1])
    if not target_probs.shape[0]:  # vmap takes no batch of nothing
        empty = draft.tokens.new_zeros(0, target_probs.shape[1], dtype=torch.int64)
        return Verdict(empty, empty.sum(1), empty.sum(1), empty[:, 1:].clone())
    wide = draft._replace(probs=None if draft.probs is None else draft.probs.to(torch.float64), length=length)
    return batched(verifier.decide)(_numbers(drawn, target_probs), target_probs.to(torch.float64), wide)


def _check_positions(key: Key, position: int | Tensor) -> None:
    if isinstance(position, Tensor) and position.shape != key.shape:
        raise ValueError(f"position has shape {list(position.shape)}; expected {list(key.shape)}, one for each key")


def _numbers(drawn: Words | Races | Race, target_probs: Tensor) -> Tape | Race:
    """What the batched ``decide`` reads."""
    if isinstance(drawn, Words):
        return tape(drawn)
    if isinstance(drawn, Race):
        return drawn
    rows, vocab = target_probs.shape[1:]
    lanes = torch.arange(rows, device=target_probs.device)
    # Under vmap no value is looked at, so that nothing waits for the device.
    return Race(torch.func.vmap(lambda words, position: noise(Key(words), position + lanes, vocab))(drawn.keys, drawn.position))


def _by_kernel(rule: Any, drawn: Words | Races | Race, target_probs: Tensor, draft: Draft) -> Verdict:
    from specdec_kernels.verify_triton import verify

    named = {} if rule == "greedy" else drawn._asdict()
    tokens, accepted = verify(rule, target_probs, draft.tokens, draft.probs, draft.length, **named)
    lane = torch.arange(draft.tokens.shape[1], device=tokens.device)
    return Verdict(tokens, accepted, accepted + 1, torch.where(lane < accepted[:, None], lane, -1))


def _missing(verifier: Verifier, target_probs: Tensor, draft: Draft) -> str:
    """Why no kernel can do it; empty where one can."""
    if verifier.decide not in RULES:
        return f"{verifier.name} has no kernel"
    if draft.parents is not None:
        return "the draft is a tree, which no kernel takes"
    if draft.tokens.shape[1] > LONGEST or not 1 <= target_probs.shape[2] <= LARGEST:
        sizes = f"K = {draft.tokens.shape[1]} and V = {target_probs.shape[2]}"
        return f"the pass has {sizes}, and kernels take K up to {LONGEST} and V in [1, {LARGEST}]"
    return ""


def _check(verifier: Verifier, drawn: Words | Races | Race, target: Tensor, draft: Draft) -> None:
    if not isinstance(verifier, Verifier):
        raise TypeError(f"the verifier is {verifier!r:.40}; expected a Verifier, such as verifiers['token']")
    wanted = (Races, Race) if verifier.decide is coupled.decide else (Words,)
    if not isinstance(drawn, wanted):
        raise TypeError(f"the randomness is {type(drawn).__name__}; expected {' or '.join(kind.__name__ for kind in wanted)} for {verifier.name}")
    if target.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"target_probs has dtype {target.dtype}; expected float32 or float64")
    if target.dim() != 3 or not target.shape[1]:
        raise ValueError(f"target_probs has shape {list(target.shape)}; expected [B, K + 1, V]")
    batch, rows, vocab = target.shape
    k = rows - 1
    drafted = draft.tokens.shape[1] if draft.tokens.dim() == 2 else k
    if drafted != k:
        raise ValueError(f"target_probs has {rows} rows; expected {drafted + 1}, one more than the {drafted} drafted tokens")
    shapes: dict[str, tuple[int, ...]] = {
        "tokens": (batch, k),
        "probs": (batch, k, vocab),
        "length": (batch,),
        "parents": (batch, k),
        "accept": (batch, k),
        "final": (batch,),
        "keys": (batch, 2),
        "position": (batch,),
        "noise": (batch, rows, vocab),
    }
    for name, value in {**draft._asdict(), **drawn._asdict()}.items():
        if value is None:
            continue
        dtype = target.dtype if name == "probs" else torch.float64 if name == "noise" else torch.int64
        if value.dtype is not dtype and not (name in ("tokens", "length") and value.dtype is torch.int32):
            raise TypeError(f"{name} has dtype {value.dtype}; expected {dtype}")
        if tuple(value.shape) != shapes[name]:
            raise ValueError(f"{name} has shape {list(value.shape)}; expected {list(shapes[name])}")
