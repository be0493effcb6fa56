"""An engine with captured steps emits what it emits without them."""

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_structure

from specdec_fn import SamplingParams
from specdec_fn.engine import Config, EngineState, Request, clone, init, run, step, submit
from specdec_fn.engine import capture as capturing
from specdec_fn.engine.decode import decode
from specdec_fn.engine.forward import PassError
from specdec_fn.engine.graphs import Bucket, Graphs, fitting, graphs
from specdec_fn.engine.identity import identity
from specdec_fn.engine.packing import packed
from specdec_fn.engine.propose import proposed
from specdec_fn.engine.step import planned
from specdec_fn.models import toy
from specdec_fn.pytree import checking
from specdec_fn.random import key
from specdec_fn.speculate import Proposer, verifiers
from specdec_fn.speculate.draft import chain

VOCAB = 16
MODEL = toy.llama(key(5), vocab_size=VOCAB, context=64)
CONFIG = Config(page_size=4, num_pages=64, max_batch=4, prefill_chunk=8, k=3)
LINES = ((3, 1, 4, 1, 5, 3, 1), (2, 7, 1, 8, 2, 7, 1, 8), (1, 6, 1, 6))
CONTROLS = (SamplingParams(), SamplingParams(temperature=0.7, top_k=5), SamplingParams(top_p=0.8, min_p=0.02), SamplingParams(temperature=0))


def lawful(key: Any, state: Any, tokens: list[int], k: int, *, position: int) -> Any:
    """Drafts with the laws that they were drawn from: a law on one token, so that the draw is no question."""
    ids = [(tokens[-1] + place) % VOCAB for place in range(min(k, len(tokens) % 4))]
    return state, chain(ids, k, torch.nn.functional.one_hot(torch.tensor(ids, dtype=torch.int64), VOCAB).double())


SOFT = Proposer("soft", lambda prompt: (), lawful)


@pytest.fixture(scope="module")
def captured() -> Graphs:
    buckets = [
        Bucket(2, 4, 8, "token", cuts=False),
        Bucket(4, 4, 16, "token"),
        Bucket(4, 4, 16, "token", True),
        Bucket(4, 4, 16, "coupled"),
    ]
    return graphs(MODEL, init(MODEL, CONFIG), buckets)._replace(fill=0.0)


def begun(proposer: Any, rule: str, **changes: Any) -> EngineState:
    state = init(MODEL, CONFIG)
    for place, line in enumerate(LINES):
        asked = Request(line, 20, CONTROLS[place], seed=place, proposer=proposer, verifier=rule)
        state, _ = submit(state, dataclasses.replace(asked, **changes))
    return state


def watched(graphs: Graphs) -> tuple[Graphs, list[Bucket]]:
    """The same captured steps, and a list of those that ran."""
    ran: list[Bucket] = []

    def noted(bucket: Bucket, step: Any) -> Any:
        def run(pool: Any, batch: Any) -> Any:
            ran.append(bucket)
            return step(pool, batch)

        return run

    return graphs._replace(steps={bucket: noted(bucket, step) for bucket, step in graphs.steps.items()}), ran


@pytest.mark.parametrize("proposer", ["none", "ngram", SOFT], ids=["none", "ngram", "soft"])
@pytest.mark.parametrize("rule", ["token", "coupled"])
def test_tokens_are_those_without_graphs(captured: Graphs, proposer: Any, rule: str) -> None:
    """Whatever the batch, the drafts and the bucket; log-probabilities too, and the counts."""
    seen, ran = watched(captured)
    before, plain = run(MODEL, begun(proposer, rule))
    after, quick = run(MODEL, begun(proposer, rule), graphs=seen)
    assert len(ran) > 3 or (proposer is SOFT and rule != "token")
    assert (after.counters.captured, before.counters.captured) == (len(ran), 0)
    for number, one in plain.items():
        other = quick[number]
        assert other.tokens == one.tokens
        assert other.finish_reason == one.finish_reason
        assert torch.allclose(torch.tensor(other.logprobs), torch.tensor(one.logprobs), atol=1e-5)
        assert (other.stats.passes, other.stats.proposed, other.stats.accepted) == (one.stats.passes, one.stats.proposed, one.stats.accepted)


def test_a_pass_takes_the_smallest_bucket_it_fits(captured: Graphs) -> None:
    seen, ran = watched(captured)
    state = begun("ngram", "token")
    run(MODEL, state, graphs=seen)
    plain = init(MODEL, CONFIG)
    for place, line in enumerate(LINES[:2]):
        plain, _ = submit(plain, Request(line, 5, seed=place, proposer="ngram"))
    run(MODEL, plain, graphs=seen)
    assert {(bucket.sequences, bucket.cuts) for bucket in ran} == {(2, False), (4, True)}


def test_a_pass_that_would_be_mostly_padding_takes_no_bucket(captured: Graphs) -> None:
    seen, ran = watched(captured._replace(fill=0.5))
    run(MODEL, begun("none", "token"), graphs=seen)
    assert not ran


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SamplingParams(presence_penalty=0.5)},
        {"sampling": SamplingParams(min_tokens=3)},
        {"sampling": SamplingParams(typical_p=0.9)},
        {"sampling": SamplingParams(logit_bias={1: 1.0})},
        {"logprobs": 2},
        {"prompt_logprobs": True},
        {"proposer": "ngram_tree", "verifier": "tree"},
        {"verifier": "greedy", "sampling": SamplingParams(temperature=0)},
        {"k": 9},
    ],
    ids=str,
)
def test_what_a_captured_step_does_not_know_is_taken_without(captured: Graphs, changes: dict[str, Any]) -> None:
    """And gives what it gives without graphs, beside requests that would fit."""
    repeating = {"prompt": (1, 2) * 8} if "k" in changes else {}
    states = [
        submit(begun("ngram", "token"), Request(**{"prompt": LINES[0], "max_tokens": 20, "seed": 9, "proposer": "ngram", **changes, **repeating}))
        for _ in range(2)
    ]
    _, plain = run(MODEL, states[0][0])
    _, quick = run(MODEL, states[1][0], graphs=captured)
    assert {number: one.tokens for number, one in plain.items()} == {number: one.tokens for number, one in quick.items()}
    assert {number: one.prompt_logprobs for number, one in plain.items()} == {number: one.prompt_logprobs for number, one in quick.items()}


def test_invariant_mode_has_no_captured_steps(captured: Graphs) -> None:
    state = init(MODEL, dataclasses.replace(CONFIG, invariant=True))
    state, _ = submit(state, Request((1,), 4))
    state, plan = planned(state)
    assert fitting(captured, state, proposed(state, plan)[1]) is None


def test_a_row_that_is_no_law_ends_its_own_request_only(captured: Graphs) -> None:
    def broken(params: Any, tokens: Any, positions: Any, kv: Any, attend: Any) -> Any:
        logits, kv = MODEL.apply(params, tokens, positions, kv, attend)
        return torch.where((tokens == 7)[:, None], torch.nan, logits), kv

    model = MODEL._replace(apply=broken, apply_at=None, prefill=None)
    found = []
    for steps in (None, captured):
        _, done = run(model, begun("none", "token"), graphs=steps)
        found.append({number: (one.tokens, one.finish_reason, one.error) for number, one in done.items()})
    assert found[0] == found[1]
    assert "error" in {reason for _, reason, _ in found[0].values()}


def test_a_failed_pass_leaves_a_state_to_go_on_from(captured: Graphs) -> None:
    """N9: with and without donation enforced."""
    fuse = [True]

    def failing(pool: Any, batch: Any) -> Any:
        if fuse:
            fuse.clear()
            raise OSError("out of luck")
        return captured.steps[Bucket(4, 4, 16, "token")](pool, batch)

    broken = Graphs({Bucket(4, 4, 16, "token"): failing})
    _, wanted = run(MODEL, begun("ngram", "token"))
    for strict in (False, True):
        fuse[:] = [True]
        state, failures, done = begun("ngram", "token"), 0, {}
        while len(state.records):
            try:
                if strict:
                    with checking():
                        state, events = step(MODEL, state, graphs=broken)
                else:
                    state, events = step(MODEL, state, graphs=broken)
            except PassError as error:
                state, failures = error.state, failures + 1
                continue
            done |= {event.request_id: event.generation for event in events if event.generation is not None}
        assert failures == 1
        assert {number: one.tokens for number, one in done.items()} == {number: one.tokens for number, one in wanted.items()}


def test_an_idle_bucket_writes_nothing() -> None:
    """K10: a pass of nothing but padding, as a graph is captured with, leaves a pool in use as it was."""
    state, _ = run(MODEL, begun("ngram", "token"), 4)
    before = clone(state).store
    for rule in ("token", "coupled"):
        pool, found = decode(MODEL, verifiers[rule], state.store, packed(state, [], Bucket(4, 4, 16, rule)))
        assert torch.equal(pool.keys, before.keys)
        assert torch.equal(pool.values, before.values)
        assert not found.verdict.accepted.any()


@pytest.mark.parametrize("proposer", ["none", "ngram", SOFT], ids=["none", "ngram", "soft"])
@pytest.mark.parametrize("rule", ["token", "block", "coupled"])
def test_whole_steps_that_are_graphs_on_a_gpu(proposer: Any, rule: str) -> None:
    """What is captured there, uncaptured: model, laws and decisions of a padded batch in one function of tensors, on the same pool of pages."""

    home = begun(proposer, rule).store

    def whole(pool: Any, batch: Any) -> Any:
        assert tree_structure(pool) == tree_structure(home)  # as a graph was captured with, whatever passes without one have added
        return decode(MODEL, verifiers[rule], pool, batch)

    steps = Graphs({Bucket(4, 4, 16, rule, soft): whole for soft in (False, True)}, whole=True, model=identity(MODEL))
    seen, ran = watched(steps)
    _, plain = run(MODEL, begun(proposer, rule))
    _, padded = run(MODEL, begun(proposer, rule), graphs=seen)
    assert len(ran) > 3
    assert {number: one.tokens for number, one in plain.items()} == {number: one.tokens for number, one in padded.items()}


@pytest.mark.parametrize(
    ("bucket", "says"),
    [
        (Bucket(0, 1, 1), "sequences of .* is 0; expected 1 to 4"),
        (Bucket(5, 1, 1), "sequences of .* is 5; expected 1 to 4"),
        (Bucket(1, 65, 1), "rows of .* is 65; expected 1 to 64"),
        (Bucket(1, 1, 17), "pages of .* is 17; expected 1 to 16"),
        (Bucket(1, 1, 1, "tree"), "the verifier is 'tree'; expected one of "),
        (Bucket(1, 1, 1, "nobody"), "the verifier is 'nobody'"),
    ],
)
def test_what_cannot_be_captured_is_refused(bucket: Bucket, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        graphs(MODEL, init(MODEL, CONFIG), [bucket])


def test_graphs_as_a_gpu_replays_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code around a CUDA graph, with a recording in its place: a replay computes the recorded call anew, into its own results."""
    calls: list[tuple[Any, Any]] = []

    class Graph:
        def replay(self) -> None:
            arguments, out = self.call
            for old, new in zip(tensors(out), tensors(body(*arguments)), strict=True):
                old.copy_(new)

    @contextlib.contextmanager
    def recording(graph: Graph) -> Any:
        yield
        graph.call = calls[-1]

    def tensors(tree: Any) -> list[torch.Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    def body(pool: Any, batch: Any) -> Any:
        return decode(MODEL, verifiers["token"], pool, batch)

    def noted(pool: Any, batch: Any) -> Any:
        calls.append(((pool, batch), body(pool, batch)))
        return calls[-1][1]

    side = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {"Stream": lambda: side, "current_stream": lambda: side, "stream": lambda one: contextlib.nullcontext(), "CUDAGraph": Graph}
    for name, fake in (fakes | {"graph": recording}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for proposer in ("none", "ngram"):
        start, bucket = begun(proposer, "token"), Bucket(4, 4, 16)
        with torch.no_grad():
            step_ = capturing._graphed(noted, (start.store, packed(start, [], bucket)), (0,))
        seen, ran = watched(Graphs({bucket: step_}, whole=True, model=identity(MODEL)))
        _, quick = run(MODEL, start, graphs=seen)
        _, plain = run(MODEL, begun(proposer, "token"))
        assert len(ran) > 5
        assert {number: one.tokens for number, one in plain.items()} == {number: one.tokens for number, one in quick.items()}
        other = begun(proposer, "token")
        other, _ = step(MODEL, other, graphs=seen)
        with pytest.raises(PassError, match="lies elsewhere than the one that was captured"):
            run(MODEL, other, graphs=seen)


def test_graphs_of_another_model_are_refused() -> None:
    """A whole step has its parameters in it."""
    steps = Graphs({Bucket(4, 4, 16): lambda pool, batch: decode(MODEL, verifiers["token"], pool, batch)}, whole=True, model=identity(MODEL))
    other = toy.llama(key(6), vocab_size=VOCAB, context=64)
    state, _ = submit(init(other, CONFIG), Request((1, 2), 9, seed=1))
    state, _ = step(other, state, graphs=steps)
    with pytest.raises(ValueError, match="captured with another model's parameters"):
        step(other, state, graphs=steps)


def test_whole_steps_are_left_out_where_pools_move() -> None:
    def wrong(pool: Any, batch: Any) -> Any:
        raise AssertionError("a graph was run on a pool that had moved")

    steps = Graphs({Bucket(4, 4, 16): wrong}, whole=True, model=identity(MODEL))
    with checking():
        _, done = run(MODEL, begun("none", "token"), graphs=steps)
    assert {number: one.tokens for number, one in done.items()} == {
        number: one.tokens for number, one in run(MODEL, begun("none", "token"))[1].items()
    }


def test_what_is_no_bucket_and_no_graphs_is_named() -> None:
    state = init(MODEL, CONFIG)
    with pytest.raises(TypeError, match="expected Bucket"):
        graphs(MODEL, state, [(1, 1, 1)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"expected what engine\.graphs\.graphs gives"):
        step(MODEL, state, graphs=[Bucket(1, 1, 1)])  # type: ignore[arg-type]


def test_no_second_compilation(captured: Graphs) -> None:
    """R6: batches of every size and length run what was compiled at the start."""
    counters = torch._dynamo.utils.counters
    before = dict(counters["stats"])
    for count in (1, 2, 3):
        state = init(MODEL, CONFIG)
        for place in range(count):
            state, _ = submit(state, Request(LINES[place][: 2 + place], 9, CONTROLS[place], seed=place, proposer="ngram"))
        run(MODEL, state, graphs=captured)
        with torch.inference_mode():
            run(MODEL, begun("ngram", "token"), graphs=captured)
    assert dict(counters["stats"]) == before
