"""Whatever happens to an engine in whatever order, every request gets the tokens that it gets alone, and no page is lost or holds anything else.

What a request gets alone is computed with the dense loop of ``engine.generate``; the keys and values of every page in use are compared, bit for
bit, with those of a cold pass over the same tokens.
"""

from collections import Counter
from contextlib import nullcontext
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from specdec_fn import SamplingParams, models
from specdec_fn.engine import Config, EngineState, PassError, Request, abort, clone, fork, free_pages, init, restore, snapshot, step, submit
from specdec_fn.engine.attention import INVARIANT, of_draft
from specdec_fn.engine.generate import begin, prefill
from specdec_fn.engine.job import SILENT
from specdec_fn.engine.law import law
from specdec_fn.engine.running import Running, drafted, judged, rows
from specdec_fn.engine.state import record_of
from specdec_fn.kv import dense, pages, prefix, store, table
from specdec_fn.models import Model, toy
from specdec_fn.models.model import Forward
from specdec_fn.pytree import checking
from specdec_fn.random import Key, fold_in, key
from specdec_fn.speculate import Proposer, proposers, tree, verifiers
from specdec_fn.speculate.draft import chain

VOCAB, CONTEXT = 11, 14
MODEL = toy.llama(key(3), vocab_size=VOCAB, width=8, heads=2, kv_heads=1, head_dim=4, ffn=12, context=32)
PLAIN = models.invariant(MODEL)
RULES = [name for name, one in verifiers.items() if one.lossless]
BASES = ((1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 1, 2), (7, 7, 8, 7, 7, 8, 7, 7, 9, 7, 7, 8))
CONTROLS = (
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.4, top_k=6, repetition_penalty=1.3, presence_penalty=0.4),
    SamplingParams(temperature=0, frequency_penalty=0.8, min_tokens=3),
    SamplingParams(min_tokens=2, min_p=0.01, bad_words=((1, 2),)),
)


def noise(context: Any, size: int) -> int:
    return int.from_bytes(blake2b(repr(context).encode(), digest_size=8).digest(), "big") % size


@lru_cache(2048)
def likely(context: tuple[int, ...]) -> tuple[int, ...]:
    """What greedy decoding goes on with."""
    if len(context) == CONTEXT:
        return ()
    best = int(models.logits(MODEL, context)[-1].argmax())
    return (best, *likely((*context, best))[:3])


def failing(context: list[int]) -> list[int]:
    if noise(context, 4) == 0:
        raise RuntimeError("no idea")
    return [noise(context, VOCAB)]


def branching(key: Key, state: Any, tokens: list[int], k: int, *, position: int) -> Any:
    """A tree whose second branch is right for a few tokens, so that what is kept does not lie together."""
    right = likely(tuple(tokens))
    return state, tree.merge([[(right[0] + 1) % VOCAB, 3], right[: noise(tokens, 4)]], k) if right else chain((), k)


def named(name: str, fn: Any) -> Proposer:
    return proposers.scripted.proposer(fn)._replace(name=name)


GIVEN = {
    "noise": named("noise", lambda context: [noise((context, place), VOCAB) for place in range(noise(context, 5))]),
    "likely": named("likely", lambda context: [*likely(tuple(context))[: noise(context, 5)], noise(context, VOCAB)]),
    "failing": named("failing", failing),
    "eager": proposers.ngram.proposer()._replace(name="eager"),
    "forest": Proposer("forest", lambda prompt: (), branching),
}
PROPOSERS = ("none", "ngram", "ngram_tree", *GIVEN.values())


class Line(NamedTuple):
    """What a request's tokens follow from: its settings and key, and for a fork the line that it left after so many tokens."""

    request: Request
    own: Key
    parent: "Line | None" = None
    after: int = 0
    anew: bool = False  # whether its proposer began anew

    @property
    def limit(self) -> int:
        return min(self.request.max_tokens, CONTEXT - len(self.request.prompt))


def begun(line: Line) -> tuple[Running, list[float]]:
    """A request before its own first pass, and the log-probabilities it has inherited."""
    request = line.request
    proposer, k = (SILENT, 0) if request.proposer == "none" else (proposers.named(request.proposer), request.k)
    how = {"law": law(request.sampling, request.prompt, request.stop_ids), "proposer": proposer, "verifier": verifiers[request.verifier], "k": k}
    if line.parent is None:
        parts = {"prompt": request.prompt, "count": line.limit, "ends": frozenset(request.stop_ids), "attention": INVARIANT}
        return begin(PLAIN, line.own, **how, **parts), []
    run, logprobs = begun(line.parent)
    while len(run.tokens) < line.after:
        run, some = passed(run)
        logprobs += some
    assert len(run.tokens) == line.after, "a fork leaves between two passes"
    return run._replace(key=line.own, guess=proposer.init(list(request.prompt)) if line.anew else run.guess, **how), logprobs


def passed(run: Running) -> tuple[Running, list[float]]:
    run, draft = drafted(run, VOCAB)
    with torch.inference_mode():
        logits, cache = PLAIN.apply(PLAIN.params, *rows(run, draft), run.kv, of_draft(INVARIANT, draft))
        run, one = judged(run._replace(kv=None), draft, logits, cache)
    return run, one.logprobs


def alone(line: Line) -> tuple[list[int], list[float], str]:
    """Tokens, log-probabilities and the reason of the end."""
    (run, logprobs), known = begun(line), line.after or len(line.request.prompt)
    while True:
        try:
            run, some = passed(run)
        except (RuntimeError, ValueError):  # the proposer has no idea, or the verifier knows no trees
            return list(run.tokens[run.prompt :]), logprobs, "error"
        logprobs += some
        while known < len(run.tokens):
            known += 1
            made = list(run.tokens[run.prompt : known])
            if made[-1] in line.request.stop_ids or len(made) == line.limit:
                return made, logprobs[: len(made)], "stop" if made[-1] in line.request.stop_ids else "length"


@lru_cache(2048)
def cold(tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of all layers after one pass over the tokens: [layers, tokens, heads, width]."""
    cache = prefill(PLAIN, (*tokens, 0), 0, dense.attend_invariant)
    return torch.stack(cache.keys)[:, : len(tokens)], torch.stack(cache.values)[:, : len(tokens)]


def fused(model: Model, fuse: list[str]) -> Model:
    """The model, but that a pass raises while the fuse says so: before it does anything, or when all is written."""

    def wrapped(passing: Any) -> Any:
        def apply(*arguments: Any) -> Any:
            made = passing(*arguments) if fuse != ["before"] else None
            if fuse:
                raise OSError("out of luck")
            return made

        return passing and apply

    assert model.invariant is not None
    return model._replace(invariant=Forward(*map(wrapped, model.invariant)))


class Books(NamedTuple):
    """What must be true of an engine, kept beside it; a past has books of its own."""

    lines: dict[int, Line]
    made: dict[int, list[int]]
    logprobs: dict[int, list[float]]
    forks: Counter[int]
    ended: Counter[str]
    emitted: int = 0

    def copy(self) -> "Books":
        lists = [{number: list(one) for number, one in some.items()} for some in (self.made, self.logprobs)]
        return Books(dict(self.lines), *lists, Counter(self.forks), Counter(self.ended), self.emitted)


busy = precondition(lambda self: len(self.state.records))


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        page_size=st.integers(1, 4),
        num_pages=st.integers(4, 10),
        max_batch=st.integers(1, 4),
        prefill_chunk=st.integers(1, 6),
        prefix_cache=st.sampled_from([True, True, False]),
        strict=st.booleans(),
    )
    def begin(self, strict: bool, **sizes: Any) -> None:
        self.config = Config(**sizes, context=CONTEXT, verifier="block", proposer="ngram", k=2, invariant=True, seed=5)
        self.strict = strict
        self.fuse: list[str] = []
        self.model = fused(MODEL, self.fuse)
        self.state = init(self.model, self.config)
        self.books = Books({}, {}, {}, Counter(), Counter())
        self.pasts: list[tuple[EngineState, Books]] = []
        self.committed: set[tuple[int, ...]] = set()

    @property
    def live(self) -> list[int]:
        return sorted(self.state.records.keys())

    @rule(
        base=st.sampled_from(BASES),
        cut=st.sampled_from([1, 1, 2, 3, 5, 8, 11, 12]),
        copies=st.sampled_from([1, 1, 2, 4]),
        tail=st.lists(st.integers(0, VOCAB - 1), max_size=2),
        max_tokens=st.integers(1, 9),
        large=st.sampled_from([False, False, False, True]),
        sampling=st.sampled_from(CONTROLS),
        verifier=st.sampled_from(RULES),
        proposer=st.sampled_from(PROPOSERS),
        k=st.integers(0, 5),
        seed=st.none() | st.integers(0, 2),
        stop_ids=st.sampled_from([(), (), (3,), (0, 7)]),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([b"", b"", b"x"]),
    )
    def submit(self, base: Any, cut: int, copies: int, tail: list[int], max_tokens: int, large: bool, **how: Any) -> None:
        slots = self.config.num_pages * self.config.page_size
        prompt = (*base[:cut], *tail)[: CONTEXT - 1]
        if not large:
            prompt = prompt[: max(1, slots - 2)]
            max_tokens = min(max_tokens, slots + 1 - len(prompt))
        if how["verifier"] == "greedy" and not how["sampling"].greedy:
            how["verifier"] = "coupled"
        for _ in range(copies):
            self.ask(Request(prompt, max_tokens, **how))

    def ask(self, request: Request) -> None:
        number = self.state.counters.submitted
        line = Line(request, fold_in(key(self.config.seed), number) if request.seed is None else key(request.seed))
        slots = len(request.prompt) + line.limit - 1
        if table.pages_for(slots, page_size=self.config.page_size) > self.config.num_pages:
            with pytest.raises(ValueError, match=r"the whole pool|pages that there are"):
                submit(self.state, request)
            return
        self.state, given = submit(self.state, request)
        assert given == number
        self.books.lines[number], self.books.made[number], self.books.logprobs[number] = line, [], []

    @busy
    @rule(count=st.sampled_from([1, 1, 2, 3, 5]), when=st.sampled_from(["", "", "", "", "before", "after"]))
    def step(self, count: int, when: str) -> None:
        self.fuse[:] = ["before" if self.strict else when] if when else []  # what is given away cannot be read again in check mode
        for _ in range(count):
            try:
                with checking() if self.strict else nullcontext():
                    self.state, events = step(self.model, self.state)
            except PassError as error:
                self.fuse.pop()
                self.state, events = error.state, []
            self.read(events)
        self.fuse.clear()

    def read(self, events: list[Any]) -> None:
        books = self.books
        assert len({event.request_id for event in events}) == len(events)
        for event in events:
            number, tokens, logprobs, reason = event
            assert tokens or reason
            assert len(tokens) == len(logprobs) == len(event.kinds)
            books.made[number].extend(tokens)
            books.logprobs[number].extend(logprobs)
            self.books = books = books._replace(emitted=books.emitted + len(tokens))
            assert (event.generation is None) == (reason is None) == (number in self.state.records)
            if reason is None:
                continue
            done = event.generation
            self.commit(number)
            assert (done.tokens, done.logprobs, done.finish_reason) == (books.made[number], books.logprobs[number], reason)
            assert (books.made[number], books.logprobs[number], reason) == alone(books.lines[number]), f"request {number}: {books.lines[number]}"
            assert done.stats.emitted == len(done.tokens)
            books.ended["failed" if reason == "error" else "finished"] += 1

    def commit(self, number: int) -> tuple[int, ...]:
        """Remembers a request's tokens so far, which pages may hold from now on."""
        tokens = (*self.books.lines[number].request.prompt, *self.books.made[number])
        self.committed |= {tokens[:end] for end in range(1, len(tokens) + 1)}
        return tokens

    @busy
    @rule(which=st.sampled_from([-1, -1, 0, 1, 2, 3]))
    def abort(self, which: int) -> None:
        number = self.live[which] if 0 <= which < len(self.live) else 77
        self.books.ended["aborted"] += number in self.state.records
        self.state = abort(abort(self.state, number), number)

    @busy
    @rule(
        which=st.integers(0, 9),
        seed=st.none() | st.integers(0, 2),
        changed=st.sets(st.sampled_from(["k", "proposer", "verifier", "sampling"])),
        k=st.integers(0, 4),
        proposer=st.sampled_from(PROPOSERS),
        verifier=st.sampled_from(RULES),
        sampling=st.sampled_from(CONTROLS),
    )
    def fork(self, which: int, seed: int | None, changed: set[str], **some: Any) -> None:
        books, number = self.books, self.live[which % len(self.live)]
        changes, line = {name: some[name] for name in sorted(changed)}, books.lines[number]
        request = line.request.__class__(**(vars(line.request) | {"seed": seed} | changes))
        if request.verifier == "greedy" and not request.sampling.greedy:
            with pytest.raises(ValueError, match="verifier 'greedy' with temperature"):
                fork(self.state, number, seed=seed, **changes)
            return
        self.state, forked = fork(self.state, number, seed=seed, **changes)
        own = fold_in(fold_in(line.own, 4), books.forks[number]) if seed is None else key(seed)
        books.lines[forked] = Line(request, own, line, len(request.prompt) + len(books.made[number]), "proposer" in changes)
        books.made[forked], books.logprobs[forked] = list(books.made[number]), list(books.logprobs[number])
        books.forks[number] += 1

    @busy
    @rule(again=st.booleans())
    def write_down(self, again: bool) -> None:
        written = snapshot(self.state)
        restored = restore(self.model, written, proposers=GIVEN)
        assert restored.counters == self.state.counters
        self.state = restored if again else self.state

    @precondition(lambda self: len(self.state.records) and len(self.pasts) < 2)
    @rule()
    def keep(self) -> None:
        self.pasts.append((clone(self.state), self.books.copy()))

    @precondition(lambda self: self.pasts)
    @rule(which=st.integers(0, 1))
    def go_back(self, which: int) -> None:
        self.state, self.books = self.pasts.pop(which % len(self.pasts))

    @invariant()
    def the_pages_are_in_one_place_each(self) -> None:
        work = self.state.work
        held, cached = Counter(page for entry in work.running for page in entry.table.pages), set(work.cache.hashes.keys())
        assert pages.free_count(work.pool) + prefix.idle_count(work.cache) + len(held) == self.config.num_pages
        assert dict(work.pool.held.items()) == dict(held + Counter(dict.fromkeys(cached, 1)))
        assert set(work.cache.idle.keys()) == cached - set(held)
        assert free_pages(self.state) == self.config.num_pages - len(held)
        assert all(entry.table.pages == () for entry in work.waiting.entries.values())

    @invariant()
    def the_pages_hold_the_keys_and_values_of_committed_tokens(self) -> None:
        """P8: what counts in a table, and what is published, is what a cold pass computes; and all full pages are published, drafts are not."""
        work, page_size = self.state.work, self.config.page_size
        for number in self.live:
            assert record_of(self.state, number).run.tokens == self.commit(number)
        for entry in work.running:
            assert entry.tokens == record_of(self.state, entry.id).run.tokens
            assert entry.table.length < len(entry.tokens)
            assert entry.tip.pages == (entry.table.length // page_size if self.config.prefix_cache else 0)
            self.same_bits(table.slots(entry.table, 0, entry.table.length, page_size=page_size), entry.tokens[: entry.table.length])
        nodes = {node.serial: node for node in work.cache.nodes.values()}
        for node in nodes.values():
            chain, parent = node.tokens, node.parent
            while parent in nodes:
                chain, parent = nodes[parent].tokens + chain, nodes[parent].parent
            if isinstance(parent, bytes):  # else its parent was evicted while somebody held this one, and nothing finds it
                assert chain in self.committed
                self.same_bits(range(node.page * page_size, (node.page + 1) * page_size), chain)

    def same_bits(self, slots: Any, tokens: tuple[int, ...]) -> None:
        """The slots hold what belongs to the last of the tokens."""
        if not slots:
            return
        pool = self.state.store
        for ours, right in zip((pool.keys, pool.values), cold(tokens), strict=True):
            found = torch.stack([store.rows(ours, layer, pool.pages)[list(slots)] for layer in range(pool.layers)])
            assert found.equal(right[:, len(tokens) - len(slots) :])

    @invariant()
    def the_counters_agree(self) -> None:
        counters, books = self.state.counters, self.books
        assert counters.submitted == len(books.lines)
        assert (counters.finished, counters.aborted, counters.failed) == tuple(books.ended[name] for name in ("finished", "aborted", "failed"))
        assert len(self.state.records) == counters.submitted - books.ended.total()
        assert counters.emitted == books.emitted
        assert 0 <= counters.accepted <= min(counters.proposed, counters.emitted)
        assert 0 <= counters.cached <= counters.prompted

    def teardown(self) -> None:
        if not hasattr(self, "state"):
            return
        left = sum(len(line.request.prompt) + line.limit for number, line in self.books.lines.items() if number in self.state.records)
        for _ in range(8 * left + 8):  # a token is computed again at most a few times
            if not len(self.state.records):
                break
            self.step(1, "")
        assert not len(self.state.records), f"{self.live} are still there"
        assert free_pages(self.state) == self.config.num_pages
        self.the_pages_are_in_one_place_each()
        self.the_counters_agree()


def test_whatever_happens_each_request_is_as_alone_and_no_page_is_lost() -> None:
    """P8, P9, C5 and most of what is in test_engine_faults_pages, in an order of chance."""
    run_state_machine_as_test(EngineMachine, settings=settings(max_examples=3 * settings().max_examples // 4, stateful_step_count=30))
