"""One door for a batch: both implementations, what it refuses, and that nothing in it waits for a value."""

import pytest
import torch
from jaxtyping import TypeCheckError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from specdec_fn.random import key, split
from specdec_fn.speculate import Draft, Race, ragged, verifiers
from specdec_fn.speculate.ragged import Races, Words, decide_all, races, tape, words
from specdec_fn.speculate.verdict import Verdict
from specdec_kernels import verify_triton

K, V = 3, 7
LENGTHS = (3, 0, 2, 3)
WITH_KERNEL = ["token", "block", "coupled", "greedy"]
CHAINS = [name for name in verifiers if name not in WITH_KERNEL]


def batch(dtype=torch.float64, seed=0, *, soft=True):
    """Laws, a ragged draft with -1 and NaN in its padding, keys and positions of four sequences."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.softmax(2 * torch.randn(len(LENGTHS), K + 1, V, generator=generator, dtype=torch.float64), -1)
    q = torch.softmax(p[:, :K].log() + torch.randn(len(LENGTHS), K, V, generator=generator, dtype=torch.float64), -1)
    tokens = torch.multinomial(q.flatten(0, 1), 1, generator=generator).reshape(-1, K)
    for b, length in enumerate(LENGTHS):
        q[b, length:], tokens[b, length:] = torch.nan, -1
    draft = Draft(tokens, q.to(dtype) if soft else None, torch.tensor(LENGTHS))
    return p.to(dtype), draft, split(key(seed), len(LENGTHS)), torch.tensor([5, 0, 1000, 2**31])


def drawn_for(name, keys, position):
    return races(keys, position) if name == "coupled" else words(keys, K, position)


def one_by_one(name, p, draft, keys, position) -> Verdict:
    """The verifier's own tape and rule, a sequence at a time, in float64."""
    verdicts = []
    for b in range(len(p)):
        alone = Draft(draft.tokens[b], None if draft.probs is None else draft.probs[b].double(), draft.length[b])
        rule = verifiers[name]
        verdicts.append(rule.decide(rule.tape(keys[b], K, V, position=int(position[b])), p[b].double(), alone))
    return Verdict(*map(torch.stack, zip(*verdicts, strict=True)))


def same(ours: Verdict, theirs: Verdict) -> None:
    assert [field.tolist() for field in ours] == [field.tolist() for field in theirs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", list(verifiers))
def test_a_batch_is_its_sequences(name, dtype) -> None:
    p, draft, keys, position = batch(dtype, seed=1)
    same(decide_all(verifiers[name], drawn_for(name, keys, position), p, draft), one_by_one(name, p, draft, keys, position))


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_the_kernel_is_the_torch_path(name, soft) -> None:
    p, draft, keys, position = batch(torch.float32, seed=2, soft=soft)
    drawn = drawn_for(name, keys, position)
    same(decide_all(verifiers[name], drawn, p, draft, impl="triton"), decide_all(verifiers[name], drawn, p, draft, impl="torch"))


def test_the_noise_of_a_race_may_be_given() -> None:
    p, draft, keys, position = batch()
    rule = verifiers["coupled"]
    noise = torch.stack([rule.tape(keys[b], K, V, position=int(position[b])).noise for b in range(len(p))])
    expected = decide_all(rule, races(keys, position), p, draft)
    for impl in ("torch", "triton"):
        same(decide_all(rule, Race(noise), p, draft, impl=impl), expected)


def test_words_are_the_numbers_of_the_tape() -> None:
    _, _, keys, position = batch()
    drawn = tape(words(keys, K, position))
    for b in range(len(LENGTHS)):
        alone = verifiers["token"].tape(keys[b], K, V, position=int(position[b]))
        assert drawn.accept[b].equal(alone.accept)
        assert drawn.final[b].equal(alone.final)


def test_a_tree_takes_the_torch_path() -> None:
    p, draft, keys, position = batch()
    tree = draft._replace(parents=torch.tensor([-1, -1, 0]).expand(len(LENGTHS), K))
    drawn = words(keys, K, position)
    assert decide_all(verifiers["tree"], drawn, p, tree).tokens.shape == (len(LENGTHS), K + 1)
    with pytest.raises(ValueError, match=r"impl is 'triton', and the draft is a tree, which no kernel takes; expected impl='torch' or 'auto'"):
        decide_all(verifiers["greedy"], drawn, p, tree, impl="triton")


@pytest.mark.parametrize("name", ["typical", "multi_draft", "tree"])
def test_a_verifier_without_a_kernel_is_refused_one(name) -> None:
    p, draft, keys, position = batch()
    with pytest.raises(ValueError, match=f"impl is 'triton', and {name} has no kernel"):
        decide_all(verifiers[name], words(keys, K, position), p, draft, impl="triton")


def test_a_draft_too_long_for_a_kernel_is_decided_all_the_same() -> None:
    p = torch.full((1, 41, 2), 0.5)
    draft = Draft(torch.zeros(1, 40, dtype=torch.int64), None, torch.tensor([40]))
    drawn = Words(torch.zeros(1, 40, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    assert decide_all(verifiers["token"], drawn, p, draft).accepted.tolist() == [40]
    with pytest.raises(ValueError, match="the pass has K = 40 and V = 2, and kernels take K up to 31"):
        decide_all(verifiers["token"], drawn, p, draft, impl="triton")


def test_the_limits_are_the_kernel_s() -> None:
    assert (ragged.LONGEST, ragged.LARGEST) == (verify_triton.MAX_DRAFT, verify_triton.MAX_VOCAB)


def test_bad_input_is_refused() -> None:
    p, draft, keys, position = batch()
    token, drawn = verifiers["token"], words(keys, K, position)
    with pytest.raises(TypeError, match="the randomness is Races; expected Words for token"):
        decide_all(token, races(keys, position), p, draft)
    with pytest.raises(TypeError, match="the randomness is Words; expected Races or Race for coupled"):
        decide_all(verifiers["coupled"], drawn, p, draft)
    with pytest.raises(TypeError, match=r"target_probs has dtype torch.bfloat16; expected float32 or float64"):
        decide_all(token, drawn, p.bfloat16(), draft)
    with pytest.raises(ValueError, match=r"target_probs has shape \[4, 7\]; expected \[B, K \+ 1, V\]"):
        decide_all(token, drawn, p[:, 0], draft)
    with pytest.raises(TypeError, match=r"probs has dtype torch.float64; expected torch.float32"):
        decide_all(token, drawn, p.float(), draft)
    with pytest.raises(ValueError, match="target_probs has 3 rows; expected 4, one more than the 3 drafted tokens"):
        decide_all(token, drawn, p[:, :K], draft)
    with pytest.raises(ValueError, match=r"tokens has shape \[3, 3\]; expected \[4, 3\]"):
        decide_all(token, drawn, p, draft._replace(tokens=draft.tokens[:3]))
    with pytest.raises(TypeError, match=r"length has dtype torch.int16; expected torch.int64"):
        decide_all(token, drawn, p, draft._replace(length=draft.length.to(torch.int16)))
    with pytest.raises(
        (TypeError, TypeCheckError), match=r"the verifier is 'token'; expected a Verifier, such as verifiers\['token'\]|Type-check error"
    ):
        decide_all("token", drawn, p, draft)
    with pytest.raises(ValueError, match=r"final has shape \[3\]; expected \[4\]"):
        decide_all(token, drawn._replace(final=drawn.final[:3]), p, draft)
    with pytest.raises(ValueError, match="impl is 'cuda'; expected 'auto', 'torch' or 'triton'"):
        decide_all(token, drawn, p, draft, impl="cuda")


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_narrow_integers_and_lengths_outside_are_taken(name, impl) -> None:
    p, draft, keys, position = batch(torch.float32, seed=3)
    drawn = drawn_for(name, keys, position)
    narrow = draft._replace(tokens=draft.tokens.to(torch.int32), length=draft.length.to(torch.int32))
    same(decide_all(verifiers[name], drawn, p, narrow, impl=impl), decide_all(verifiers[name], drawn, p, draft, impl=impl))
    outside = draft._replace(length=torch.tensor([K + 9, -5, 2, K + 1]))  # where the lengths are 3, 0, 2 and 3
    same(decide_all(verifiers[name], drawn, p, outside, impl=impl), decide_all(verifiers[name], drawn, p, draft, impl=impl))


@pytest.mark.parametrize("name", [*WITH_KERNEL, "typical", "k_seq"])
def test_nothing_depends_on_a_value(name) -> None:
    """Fake tensors hold no values: a shape or a branch that needed one, or a wait for the device, raises."""
    p, draft, keys, position = batch(torch.float32)
    mode = FakeTensorMode()
    drawn, laws, fake = tree_map(lambda leaf: None if leaf is None else mode.from_tensor(leaf), (drawn_for(name, keys, position), p, draft))
    with mode:
        verdict = decide_all(verifiers[name], drawn, laws, fake)
    assert [tuple(field.shape) for field in verdict] == [(4, K + 1), (4,), (4,), (4, K)]


class Pass(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, first, second, p, tokens, probs, length):
        drawn = (Races if self.name == "coupled" else Words)(first, second)
        return tuple(decide_all(verifiers[self.name], drawn, p, Draft(tokens, probs, length)))


@pytest.mark.parametrize("name", WITH_KERNEL)
def test_a_pass_is_exported_whole(name) -> None:
    p, draft, keys, position = batch(torch.float32)
    arguments = (*drawn_for(name, keys, position), p, *draft[:3])
    program = torch.export.export(Pass(name), arguments)
    other, another, keys, position = batch(torch.float32, seed=5)
    drawn = drawn_for(name, keys, position)
    same(Verdict(*program.module()(*drawn, other, *another[:3])), decide_all(verifiers[name], drawn, other, another))


@pytest.mark.parametrize("impl", ["torch", "triton"])
@pytest.mark.parametrize("rule", ["token", "block", "greedy"])
def test_a_batch_of_nothing_has_a_verdict_of_nothing(rule: str, impl: str) -> None:
    none = torch.zeros(0, 1, dtype=torch.int64)
    found = decide_all(verifiers[rule], Words(none, none[:, 0]), torch.zeros(0, 2, 5), Draft(none, None, none[:, 0]), impl)
    assert [list(field.shape) for field in found] == [[0, 2], [0], [0], [0, 1]]


def test_as_many_positions_as_keys() -> None:
    for maker in (lambda position: words(split(key(0), 2), 3, position), lambda position: races(split(key(0), 2), position)):
        with pytest.raises(ValueError, match=r"position has shape \[3\]; expected \[2\], one for each key"):
            maker(torch.tensor([1, 2, 3]))
