"""Sample arguments for the public functions of the scheduler and the engine, and of the pages under them.

What is sampled is a value after some steps: a schedule in which requests wait, run, were preempted and forked; an engine with requests of every
kind, between two steps and between the lines of one.
"""

import dataclasses
import functools
import importlib
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from specdec_fn import random, schedule
from specdec_fn.engine import (
    Config,
    Constraint,
    EngineState,
    PassError,
    Request,
    attention,
    commit,
    drafting,
    encoding,
    ending,
    forward,
    generate,
    generation,
    grammar,
    identity,
    job,
    law,
    laws,
    lifecycle,
    mute,
    propose,
    running,
    snapshots,
    state,
    verify,
)
from specdec_fn.kv import paged, pages, prefix, store
from specdec_fn.kv import table as tables
from specdec_fn.kv.paged import Span
from specdec_fn.kv.table import Table
from specdec_fn.models import Model, toy
from specdec_fn.sampling import SamplingParams
from specdec_fn.schedule import Done, Entry, Limits, Plan, Schedule, admit, preempt, request, waiting
from specdec_fn.schedule.ahead import ahead
from specdec_fn.speculate import Draft, Proposer, proposers, tree, verifiers

from .purity_samples import FIXED, Call, Sample, bigram, call, chain_of, ids, sizes, table, tiny, words

# The package has functions of these names in place of the rooms.
stepping = importlib.import_module("specdec_fn.engine.step")


def samples() -> Iterator[Sample]:
    return itertools.chain(page_rooms(), prefix_rooms(), pool_rooms(), schedule_rooms(), loop_rooms(), law_rooms(), request_rooms(), step_rooms())


# Pages


def some_pages() -> pages.PagePool:
    """Eight pages: 0 is held twice, 1 and 3 once, 2 was given back."""
    return pages.release(pages.retain(pages.alloc(pages.init(8), 4)[0], [0]), [2])


def page_rooms() -> Iterator[Sample]:
    yield Sample(pages.init, lambda: call(8))
    yield Sample(pages.init, lambda: call(0), ValueError)
    for count in (0, 1, 3, 9):
        yield Sample(pages.alloc, lambda count=count: call(some_pages(), count))
    yield Sample(pages.alloc, lambda: call(some_pages(), -1), ValueError)
    yield Sample(pages.retain, lambda: call(some_pages(), [0, 1, 1]))
    yield Sample(pages.retain, lambda: call(some_pages(), [0, 2]), ValueError)
    yield Sample(pages.release, lambda: call(some_pages(), [0, 0, 3]))
    yield Sample(pages.release, lambda: call(some_pages(), [1, 1]), ValueError)
    yield Sample(pages.free_count, lambda: call(some_pages()))
    yield Sample(pages.references, lambda: call(some_pages(), 0))
    for own, count in ((Table((3, 0), 3), 4), (Table((1,), 1), 1), (Table(), 3), (Table((0,), 2), 30), (Table((1,), 1), 0)):
        yield Sample(tables.reserve, lambda own=own, count=count: call(some_pages(), own, count, page_size=2))
    yield Sample(tables.reserve, lambda: call(some_pages(), Table((2,), 1), 1, page_size=2), ValueError)
    yield Sample(tables.append, lambda: call(Table((3, 0), 1), 2, page_size=2))
    yield Sample(tables.append, lambda: call(Table((3, 0), 1), 4, page_size=2), ValueError)
    yield Sample(tables.truncate, lambda: call(some_pages(), Table((3, 0), 3), 1, page_size=2))
    yield Sample(tables.fork, lambda: call(some_pages(), Table((3, 0), 3)))
    yield Sample(tables.release, lambda: call(some_pages(), Table((3, 0), 3)))
    yield Sample(tables.slots, lambda: call(Table((3, 0), 3), 1, 4, page_size=2))
    yield Sample(tables.pages_for, lambda: call(5, page_size=2))


LINE = (1, 2, 3, 4, 5, 6, 7)


def published(*, released: bool = False) -> tuple[prefix.PrefixCache, pages.PagePool, Table, prefix.Tip]:
    """Three full pages of two slots and a half one, published; then given up, or not."""
    pool, taken = pages.alloc(pages.init(8), 4)
    assert taken is not None
    own = Table(taken, 7)
    cache, pool, tip = prefix.publish(prefix.init(), pool, own, LINE, prefix.root(b"a"), page_size=2)
    if released:
        cache, pool = prefix.release(cache, pool, own)
    return cache, pool, own, tip


def grown() -> Call:
    """The half page is full now."""
    cache, pool, own, tip = published()
    return call(cache, pool, own._replace(length=8), (*LINE, 8), tip, page_size=2)


def prefix_rooms() -> Iterator[Sample]:
    yield Sample(prefix.init, call)
    yield Sample(prefix.root, lambda: call(b"a"))
    for released in (False, True):
        of = functools.partial(published, released=released)
        for salt in (b"a", b"b"):
            yield Sample(prefix.lookup, lambda of=of, salt=salt: call(of()[0], [*LINE[:4], 9], page_size=2, salt=salt))
            yield Sample(prefix.hold, lambda of=of, salt=salt: call(*of()[:2], [*LINE[:4], 9], page_size=2, salt=salt))
        yield Sample(prefix.evict, lambda of=of: call(*of()[:2], 2))
        yield Sample(prefix.idle_count, lambda of=of: call(of()[0]))
    yield Sample(prefix.release, lambda: call(*published()[:3]))
    yield Sample(prefix.publish, lambda: call(*published()[:2], Table((3, 3), 4), [8, 9, 1, 2], prefix.root(b"b"), page_size=2), ValueError)
    yield Sample(prefix.publish, lambda: call(*published()[:2], Table((3,), 2), [8, 9], prefix.root(b"b"), page_size=2))
    yield Sample(prefix.publish, grown)
    yield Sample(prefix.publish, lambda: call(*published()[:2], Table((0,), 2), [8, 9], prefix.root(), page_size=2), ValueError)


def filled() -> store.Store:
    """A pool of two layers and six pages of two slots, with something in every slot."""
    empty = store.init(sizes("llama"), 6, 2, dtype=torch.float32)
    shape = tuple(empty.keys.shape)
    return dataclasses.replace(empty, keys=table(*shape), values=table(*shape) + 1)


def pool_rooms() -> Iterator[Sample]:
    rows = lambda count: (table(count, 1, 4), table(count, 1, 4))  # noqa: E731
    yield Sample(store.init, lambda: call(sizes("llama"), 3, 2, dtype=torch.float64))
    yield Sample(store.init, lambda: call(sizes("llama"), 0, 2, dtype=torch.float64), ValueError)
    yield Sample(store.Store.nbytes.fget, lambda: call(filled()))
    yield Sample(store.clone, lambda: call(filled()))
    yield Sample(store.copy_pages, lambda: call(filled(), [0, 1], [1, 5]))
    yield Sample(store.move, lambda: call(filled(), [3, 5], [2, 3]))
    for function in (store.write, store.write_pure):
        yield Sample(function, lambda: call(filled(), 1, *rows(3), ids(4, -1, 0)))
    yield Sample(store.write, lambda: call(filled(), 1, *rows(2), ids(4, 0), whole=True))
    branching = Span([4, 5, 0, 1], 3, torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool())
    spans = ([Span([6, 7, 8, 9], 3)], [Span([2], 1), Span([6, 7, 3], 1)], [Span([10, 11, 9], 2), branching, Span([6], 1)])
    for given in spans:
        count = sum(span.count for span in given)
        for build in (paged.attend, paged.attend_invariant, paged.attend_pure):
            yield Sample(build, lambda given=given: call(list(given)))
            yield Sample(build(given), lambda count=count: call(filled(), 1, table(count, 2, 4), *rows(count)))


# The scheduler


LIMITS = Limits(page_size=2, num_pages=12, max_batch=3)


def answered(work: Schedule, plan: Plan, *, kept: int = 0) -> list[Done]:
    """What a pass might bring: a token for each lane that reaches the end, and as many drafted ones as are asked for."""
    done = []
    for lane in plan.lanes:
        entry = schedule.find(work, lane.id)
        assert entry is not None
        reaches, drafted = lane.stop == len(entry.tokens), min(kept, lane.k)
        made = tuple(range(drafted + 1)) if reaches else ()
        done.append(Done(lane, drafted, made, len(entry.tokens) + len(made) >= entry.limit))
    return done


def served(rounds: int, limits: Limits = LIMITS, *, forked: bool = False) -> Schedule:
    """Five requests of several sizes, priorities and salts after some passes."""
    work = schedule.init(limits)
    for number, size in enumerate((5, 3, 6, 7, 5)):
        more = {"priority": -int(number == 3), "salt": b"ab"[number % 2 : number % 2 + 1]}
        work = schedule.submit(work, id=number, tokens=range(1, size + 1), limit=size + 5, k=number % 3, **more)
    for turn in range(rounds):
        work, plan = schedule.schedule(work, 4)
        work = schedule.commit(work, answered(work, plan, kept=turn % 2))
        if forked and turn == 1:
            work = schedule.fork(work, work.running[0].id, 9)
    return work


def works() -> Iterator[Callable[[], Schedule]]:
    yield lambda: schedule.init(LIMITS)
    for rounds in (0, 1, 3, 6):
        yield lambda rounds=rounds: served(rounds)
    for rounds in (2, 4):
        yield lambda rounds=rounds: served(rounds, LIMITS._replace(num_pages=7), forked=True)
    yield lambda: served(3, LIMITS._replace(prefix_cache=False, max_batch=2), forked=True)


def planned_work(make: Callable[[], Schedule]) -> tuple[Schedule, list[Done]]:
    work, plan = schedule.schedule(make(), 4)
    return work, answered(work, plan, kept=1)


def entry_of(**changes: Any) -> Entry:
    return served(0).waiting.entries[2]._replace(**changes)


def schedule_rooms() -> Iterator[Sample]:
    yield Sample(schedule.init, lambda: call(LIMITS))
    yield Sample(schedule.init, lambda: call(LIMITS._replace(max_batch=0)), ValueError)
    for make in works():
        yield Sample(schedule.free_pages, lambda make=make: call(make()))
        yield Sample(schedule.commit, lambda make=make: call(*planned_work(make)))
        for budget in (0, 3, 20):
            yield Sample(schedule.schedule, lambda make=make, budget=budget: call(make(), budget))
        yield Sample(schedule.submit, lambda make=make: call(make(), id=20, tokens=[1, 2], limit=6, k=2, priority=-1))
        for number in (0, 1, 4, 77):
            yield Sample(schedule.find, lambda make=make, number=number: call(make(), number))
            yield Sample(schedule.remove, lambda make=make, number=number: call(make(), number))
            found = schedule.find(make(), number) is not None
            yield Sample(schedule.fork, lambda make=make, number=number: call(make(), number, 21, k=1), None if found else ValueError)
        for function in (waiting.ordered, waiting.overdue):
            yield Sample(function, lambda function=function, make=make: call(make().waiting))
        yield Sample(waiting.first, lambda make=make: call(make().waiting, 2))
        yield Sample(waiting.pass_over, lambda make=make: call(make().waiting, 99))
    yield Sample(schedule.submit, lambda: call(served(1), id=20, tokens=[1, 2], limit=60, k=2), ValueError)
    yield Sample(schedule.schedule, lambda: call(served(1), -1), ValueError)
    yield Sample(waiting.init, call)
    yield Sample(waiting.add, lambda: call(served(1).waiting, entry_of(id=30, arrival=30)))
    yield Sample(waiting.put_back, lambda: call(served(1).waiting, entry_of(id=30, arrival=-1)))
    for number in served(0).waiting.entries:
        yield Sample(waiting.remove, lambda number=number: call(served(0).waiting, served(0).waiting.entries[number]))
    yield Sample(waiting.overdue, lambda: call(waiting.add(waiting.init(), entry_of(passed=99))))
    yield Sample(request.drafts, lambda: call(entry_of()))
    yield Sample(request.lane, lambda: call(entry_of(), 3))
    yield Sample(request.prompt_rows, lambda: call(entry_of(), request.lane(entry_of(), 3)))
    yield Sample(request.service, lambda: call(entry_of()))
    yield Sample(request.with_table, lambda: call(entry_of(), Table((3,), 2)))
    for places, budget, rows in ((3, 9, 0), (1, 2, 0), (3, 9, 20), (3, 9, 25)):
        yield Sample(
            admit.admit,
            lambda places=places, budget=budget, rows=rows: call(*served(0)[:3], served(0).waiting, places=places, budget=budget, rows=rows),
        )
    quiet = mute.mute([2], 9)
    yield Sample(mute.mute, lambda: call([2], 9))
    yield Sample(mute.is_mute, lambda: call(mute.mute([2], 9)))
    yield Sample(quiet.decode, lambda: call([1, 2]))
    yield Sample(quiet.encode, lambda: call("a"), ValueError)
    yield Sample(ahead, lambda: call(served(2).running, 4))
    yield Sample(preempt.preempt, lambda: call(served(2).running[-1], *served(2)[1:3], served(2).waiting))
    yield Sample(preempt.take, lambda: call(pages.init(8), prefix.init(), 3))
    yield Sample(preempt.take, lambda: call(*published(released=True)[1::-1], 6))


# One sequence


def loop_rooms() -> Iterator[Sample]:
    prompt = [1, 0, 3, 1]
    yield Sample(ending.init, lambda: call(words(), [1], count=3, stop_ids=[0], stop_strings=["bb"]))
    yield Sample(ending.feed, lambda: call(ending.init(words(), [1], count=3, stop_ids=[0], stop_strings=["bb"]), [1, 2]))
    yield Sample(generation.add_pass, lambda: call(generation.Stats(), generation.Pass([4, 5], ["accepted", "recovered"], [-1.0, -1.0], 3)))
    for member in (generation.Stats.tokens_per_pass.fget, generation.Stats.acceptance_rate.fget):
        yield Sample(member, lambda: call(generation.Stats(2, 3, 1, 3)))
    rule = law.law(SamplingParams(), prompt)
    guess = proposers.scripted.proposer(lambda context: [context[-1]] * 9)
    for made in (bigram(), tiny("llama")):
        for loop in (generate.naive, generate.cached):
            yield Sample(loop, lambda made=made: call(made, random.key(1), rule, list(prompt), 3))
        yield Sample(generate.prefill, lambda made=made: call(made, list(prompt), 3))
        yield Sample(generate.begin, lambda made=made: call(made, random.key(1), rule, list(prompt), 5, guess, verifiers["token"], 2))
        for way in (attention.CAUSAL, attention.INVARIANT):
            for name, drafts in (("token", guess), ("tree", proposers.ngram_tree.proposer())):
                args = random.key(1), rule, list(prompt), 5, drafts, verifiers[name], 2
                yield Sample(generate.speculative, lambda made=made, way=way, args=args: call(made, *args, attention=way))
                start = functools.partial(generate.begin, made, *args, attention=way)
                yield Sample(running.drafted, lambda start=start: call(start(), 4))
                yield Sample(running.no_law, lambda start=start: call(start()))
                yield Sample(running.Running.left.fget, lambda start=start: call(start()))
                tried = tree.merge([[1], [2]], 2) if name == "tree" else chain_of(1, 2, k=2)
                yield Sample(running.usable, lambda start=start, tried=tried: call(start(), tried, 4))
                yield Sample(running.usable, lambda start=start, tried=tried: call(start(), tried, 2), ValueError)
                yield Sample(running.rows, lambda start=start, tried=tried: call(start(), tried))
                yield Sample(running.judged, lambda start=start, tried=tried: _after_a_forward(start(), tried))
                yield Sample(running.decided, lambda start=start, tried=tried: call(start(), tried, table(3, 4).double().softmax(-1), table(3, 4)))
    for tried in (chain_of(1, 2, k=2), tree.merge([[1], [2]], 2)):
        yield Sample(attention.of_draft, lambda tried=tried: call(attention.CAUSAL, tried))
    for made in (bigram(), tiny("llama")):
        for settings in (("ngram", None), (None, None), (None, lambda context: [1])):
            yield Sample(
                job.settle,
                lambda made=made, settings=settings: call(
                    made, list(prompt), words(), 7, FIXED, settings[0], "token", 2, 9, [2], ["bb"], False, settings[1] is None, settings[1]
                ),
            )
    rest = words(), FIXED, "ngram", "token", 2, 9, [2], ["bb"], False
    yield Sample(job.terms, lambda: call(sizes("llama"), list(prompt), *rest))
    yield Sample(job.terms, lambda: call(sizes("llama"), [7], *rest), ValueError)
    yield Sample(job.checked_model, lambda: call(tiny()))
    yield Sample(job.checked_model, lambda: call("gpt"), TypeError)
    silent = job.SILENT
    yield Sample(silent.init, lambda: call([1]))
    yield Sample(silent.propose, lambda: call(random.key(0), (), [1], 2, position=1))


def _after_a_forward(run: running.Running, tried: Draft) -> Call:
    return call(run._replace(kv=None), tried, table(3, 4), run.kv)


# Laws of many


def law_rooms() -> Iterator[Sample]:
    prompt = [1, 0, 3, 1]
    yield Sample(law.law, lambda: call(FIXED, [1, 0], ends=[3], mask=torch.ones(4) > 0))
    for settings in (FIXED, SamplingParams()):
        yield Sample(law.law(settings, prompt, ends=[3]), lambda: call(table(3, 4), [1, 2], [0, 1]))
    yield Sample(law.prefixes, lambda: call([1, 2], [0, 1], None))
    yield Sample(law.prefixes, lambda: call([1, 2], [0, 1], ids(-1, -1)))
    plain, fixed = law.Controls(SamplingParams(), tuple(prompt)), law.Controls(FIXED, tuple(prompt), (3,))
    for rows in (table(3, 4), table(3, 4).double()):
        asks = functools.partial(
            lambda rows: [
                laws.Ask(rows.clone(), plain, [1], [2, 0]),
                laws.Ask(rows.clone(), fixed, [1], [2, 0], ids(-1, -1)),
                laws.Ask(rows.clone(), plain, [], [2, 0], None, rows > -0.2),
                laws.Ask(rows[:1].clone(), fixed._replace(mask=rows[0] < 0.2), [], []),
            ],
            rows,
        )
        yield Sample(laws.laws, lambda asks=asks: call(asks()))
        yield Sample(laws.laws, lambda asks=asks: call(asks()[:1]))  # nobody to share with
        yield Sample(laws.laws, lambda asks=asks: call(asks()[1:2]))
    yield Sample(laws.laws, lambda: call([]))
    for tried in (chain_of(1, 2, k=2), tree.merge([[1, 3], [2]], 3)):
        yield Sample(grammar.allowed, lambda tried=tried: call(parity(), 0, tried, 4))
    yield Sample(grammar.allowed, lambda: call(parity(), 0, chain_of(1, 2, k=2), 5), ValueError)
    yield Sample(grammar.advanced, lambda: call(parity(), 0, [1, 2]))


def parity() -> Constraint:
    """Odd and even ids take turns."""
    return Constraint(0, lambda turn: torch.arange(4) % 2 == turn, lambda turn, token: (turn + token) % 2)


# Requests


def four_words() -> Model:
    return toy.llama(random.key(4), vocab_size=4, layers=1, width=8, heads=2, head_dim=4, ffn=6, context=24)


TARGETS = (bigram(), four_words())
DRAFTING = proposers.draft_model.proposer(toy.llama(random.key(5), vocab_size=4, layers=1, width=4, heads=1, head_dim=4, ffn=4))


AGAIN = types.MappingProxyType({"ngram_tree": proposers.ngram_tree.proposer(), "draft_model": DRAFTING})


def failing(context: Sequence[int]) -> list[int]:
    raise RuntimeError("no idea")


def kinds() -> list[Request]:
    return [
        Request([1, 2, 3, 1, 2], 6, proposer="ngram", k=2, seed=3, logprobs=2),
        Request([1, 2, 3, 1, 2], 5, proposer=proposers.ngram_tree.proposer(), verifier="tree", sampling=FIXED, prompt_logprobs=True),
        Request([1, 2, 3, 0], 5, proposer=DRAFTING, k=3, verifier="block", sampling=SamplingParams(0.8), stop=["bb"]),
        Request([3, 1, 2], 4, constraint=parity(), priority=-1, salt=b"x"),
        Request([2], 3, proposer=proposers.scripted.proposer(failing)),
    ]


def engine(model: Model, steps: int, requests: Sequence[Request] | None = None, **settings: Any) -> EngineState:
    """An engine after some steps."""
    sized = {"page_size": 2, "num_pages": 14, "max_batch": 4, "prefill_chunk": 3, **settings}
    made = state.init(model, Config(**sized), words())
    for one in kinds() if requests is None else requests:
        made, _ = lifecycle.submit(made, one)
    return stepping.run(model, made, steps)[0]


def engines() -> Iterator[tuple[Model, Callable[[], EngineState]]]:
    for model in TARGETS:
        for steps in (0, 2, 4):
            yield model, functools.partial(engine, model, steps)
    yield model, functools.partial(engine, model, 3, num_pages=8, invariant=True)
    yield model, lambda: lifecycle.fork(engine(model, 2), 0, seed=1)[0]


def named_kinds() -> list[Request]:
    """Requests of which everything can be written down."""
    return [dataclasses.replace(kinds()[0], proposer="ngram_tree", verifier="tree"), *kinds()[1:3]]


def request_rooms() -> Iterator[Sample]:
    for model in TARGETS:
        yield Sample(identity.identity, lambda model=model: call(model))
        yield Sample(state.pool, lambda model=model: call(model, Config(num_pages=3)))
        yield Sample(state.init, lambda model=model: call(model, Config(num_pages=3), words()))
        yield Sample(state.init, lambda model=model: call(model, Config(context=2**30), words()), ValueError)
        start = functools.partial(engine, model, 2)
        for one in kinds():
            yield Sample(lifecycle.submit, lambda start=start, one=one: call(start(), one))
        yield Sample(lifecycle.submit, lambda start=start: call(start(), Request([9], 4)), ValueError)
        for number in (0, 2, 77):
            yield Sample(lifecycle.abort, lambda start=start, number=number: call(start(), number))
        yield Sample(lifecycle.fork, lambda start=start: call(start(), 0, k=1))
        yield Sample(lifecycle.fork, lambda start=start: call(start(), 2, seed=4, sampling=SamplingParams(0.5)))
        yield Sample(lifecycle.fork, lambda start=start: call(start(), 2, proposer="ngram"))
        yield Sample(lifecycle.fork, lambda start=start: call(start(), 77), KeyError)
        yield Sample(lifecycle.renewed, lambda start=start: call(start(), kinds()[3], random.key(1), [3, 1, 2, 0], ()))
        for proposer in (job.SILENT, DRAFTING, other_drafting()):
            yield Sample(lifecycle.with_drafter, lambda start=start, proposer=proposer: call(start(), proposer))
        yield Sample(state.record_of, lambda start=start: call(start(), 1))
        yield Sample(state.number_of, lambda start=start: call(min(start().records.keys())))
        yield Sample(state.record_of, lambda start=start: call(start(), 77), KeyError)
        yield Sample(state.free_pages, lambda start=start: call(start()))
        yield Sample(state.clone, lambda start=start: call(start()))
        for steps in (0, 3):
            written = functools.partial(engine, model, steps, named_kinds())
            yield Sample(snapshots.snapshot, lambda written=written: call(written()))
            yield Sample(
                snapshots.restore,
                lambda model=model, written=written: call(model, snapshots.snapshot(written()), proposers=dict(AGAIN), tokenizer=words()),
            )
        yield Sample(snapshots.restore, lambda model=model, written=written: call(model, snapshots.snapshot(written())), ValueError)
        yield Sample(snapshots.restore, lambda model=model, written=written: call(model, snapshots.snapshot(written())[:-1]), ValueError)
    for value in ({"a": (1, None, b"x", 0.5)}, prefix.root(b"a"), served(3), table(2, 2), [table(2), frozenset([3, 1])]):
        yield Sample(encoding.encoded, lambda value=value: call(value))
        words_of, tensors = encoding.encoded(value)
        yield Sample(encoding.decoded, lambda words_of=words_of, tensors=tensors: call(words_of, tensors))
    yield Sample(encoding.encoded, lambda: call(len), TypeError)
    yield Sample(encoding.decoded, lambda: call({"os:remove": {}}, ()), ValueError)


def other_drafting() -> Proposer:
    return proposers.draft_model.proposer(toy.llama(random.key(6), vocab_size=4, layers=1, width=4, heads=1, head_dim=4, ffn=4))


# The lines of a step


def line(model: Model, make: Callable[[], EngineState], count: int) -> Call:
    """The arguments of a line of a step, from those of the lines before it."""
    now = make()
    if count == 0:
        return call(now)
    now, plan = stepping.planned(now)
    if count == 1:
        return call(now, plan)
    now, proposals = propose.proposed(now, plan)
    if count == 2:
        return call(model, now, proposals)
    now, logits = forward.forwarded(model, now, proposals)
    if count == 3:
        return call(now, proposals, logits)
    return call(now, verify.verified(now, proposals, logits))


def step_rooms() -> Iterator[Sample]:
    for model, make in engines():
        lines = (stepping.planned, propose.proposed, forward.forwarded, verify.verified, commit.committed)
        for count, function in enumerate(lines):
            yield Sample(function, functools.partial(line, model, make, count))
        yield Sample(stepping.step, lambda model=model, make=make: call(model, make()))
        yield Sample(stepping.run, lambda model=model, make=make: call(model, make(), 2))
        for place in (0, -1):
            yield Sample(forward.wanted, lambda model=model, make=make, place=place: call(line(model, make, 2).args[2][place]))
    yield Sample(stepping.run, lambda: call(TARGETS[1], engine(TARGETS[1], 2), -1), ValueError)
    yield Sample(stepping.step, lambda: call(TARGETS[0], engine(TARGETS[1], 2)), ValueError)
    broken = TARGETS[1]._replace(apply=broken_pass, apply_at=broken_pass)
    yield Sample(stepping.step, lambda: call(broken, engine(TARGETS[1], 2)), PassError)
    for drafter in (DRAFTING.drafter.model, bigram()):
        for invariant in (False, True):
            yield Sample(drafting.draft_together, lambda drafter=drafter, invariant=invariant: drafting_of(drafter, invariant))


def broken_pass(*args: Any) -> Any:
    raise RuntimeError("out of memory")


def drafting_of(drafter: Model, invariant: bool) -> Call:
    """Three readers: one at its end, one in its prompt, one that has nothing left to draft."""
    readers = [
        drafting.Reader(random.key(1), (1, 2, 3, 0), 3, FIXED, Table((0, 3, 4, 5), 2), 2, 4, 3, invariant),
        drafting.Reader(random.key(2), (3, 3, 1, 2, 0), 5, FIXED, Table((1, 6), 0), 0, 3, 0),
        drafting.Reader(random.key(3), (2, 1), 1, SamplingParams(), Table((2,), 1), 1, 2, 0),
    ]
    pool = store.init(drafter.config, 8, 2, dtype=torch.float64)
    return call(drafter, pool, readers, vocab_size=5, page_size=2, invariant=invariant)
