"""The last line of a step: what was decided becomes state, pages go forward or back, and every request with news gets an event."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specdec_fn import schedule
from specdec_fn.engine import ending, grammar
from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Generation, add_pass
from specdec_fn.engine.state import EngineState, Record
from specdec_fn.engine.verify import Judgement
from specdec_fn.kv import store, table
from specdec_fn.pytree import donates
from specdec_fn.schedule import Done
from specdec_fn.speculate.explain import cut_at

__all__ = ["committed"]


@donates("state")
def committed(state: EngineState, judgements: Sequence[Judgement]) -> tuple[EngineState, list[Event]]:
    """Commits a pass. DONATES the pool of keys and values, where accepted rows of trees move together.

    Returns:
        The state after the step, and an event for each request that got tokens or ended, in the order of service.

    >>> import torch
    >>> from specdec_fn.engine.request import Config, Request
    >>> from specdec_fn.engine.lifecycle import submit
    >>> from specdec_fn.engine.state import init
    >>> from specdec_fn.models import toy
    >>> from specdec_fn.schedule import Lane
    >>> state, first = submit(init(toy.bigram(torch.eye(3)), Config()), Request([1], 4))
    >>> committed(state, [Judgement(Lane(first, 0, 0, 1, 0), state.records[first], error="why not")])[1]
    [Event(request_id=0, tokens=[], logprobs=[], finish_reason='error')]
    """
    settled = [_settled(one) for one in judgements]
    records, counters, events = state.records, state.counters, []
    for record, event, _ in settled:
        counters = counters._replace(
            emitted=counters.emitted + record.stats.emitted - records[event.request_id].stats.emitted,
            proposed=counters.proposed + record.stats.proposed - records[event.request_id].stats.proposed,
            accepted=counters.accepted + record.stats.accepted - records[event.request_id].stats.accepted,
            finished=counters.finished + (event.finish_reason in ("stop", "length")),
            failed=counters.failed + (event.finish_reason == "error"),
        )
        ended = event.finish_reason is not None
        records = records.remove(event.request_id) if ended else records.insert(event.request_id, record)
        if ended or event.tokens:
            events.append(event)
    pool = _moved(state, judgements)
    work = schedule.commit(state.work, [done for _, _, done in settled if done is not None])
    for _, event, done in settled:
        if done is None:
            work = schedule.remove(work, event.request_id)
    counters = counters._replace(steps=counters.steps + bool(judgements))
    return dataclasses.replace(state, records=records, work=work, store=pool, counters=counters), events


def _settled(judgement: Judgement) -> tuple[Record, Event, Done | None]:
    """A request after the pass, its event, and what the scheduler is told: nothing of one that failed, whose rows may not have been computed."""
    lane, record, one = judgement.lane, judgement.record, judgement.one
    if one is None and judgement.error is not None:
        return record, Event(lane.id, [], [], "error", generation=_generation(record, "error", judgement.error)), None
    if one is None:
        record = record._replace(drafted=min(record.drafted, lane.stop))
        return record, Event(lane.id, [], [], None), Done(lane, filled=_filled(record))
    feeding, cut = ending.feed(record.ending, one.tokens)
    size, run = cut.size, record.run
    why = None if one.why is None else cut_at(one.why, size)
    one = one._replace(tokens=one.tokens[:size], kinds=one.kinds[:size], logprobs=one.logprobs[:size], why=why)
    kept = min(0 if judgement.kept is None else judgement.kept.shape[0] - 1, size)
    grown, refused = (record.grammar, None) if cut.finish_reason else _grown(record, one.tokens)
    error = None if cut.finish_reason else judgement.error or refused
    reason = cut.finish_reason or ("error" if error is not None else None)
    record = record._replace(
        run=run._replace(tokens=(*run.tokens[: lane.stop], *one.tokens)),
        ending=feeding,
        said=(*record.said, cut.text),
        logprobs=(*record.logprobs, *one.logprobs),
        likeliest=(*record.likeliest, *judgement.likeliest[:size]),
        grammar=grown,
        stats=add_pass(record.stats, one),
        drafted=min(record.drafted, lane.stop + kept),
    )
    generation = None if reason is None else _generation(record, reason, error)
    likeliest = list(judgement.likeliest[:size]) if record.request.logprobs else None
    event = Event(
        *(lane.id, one.tokens, one.logprobs, reason),
        text=cut.text,
        kinds=one.kinds,
        generation=generation,
        why=why,
        likeliest=likeliest,
        proposed=one.proposed,
    )
    return record, event, Done(lane, kept, tuple(one.tokens), reason is not None, _filled(record))


def _filled(record: Record) -> int | None:
    """Slots that have the drafting model's keys too, where there is one: others may share no more."""
    return None if record.drafter < 0 else record.drafted


def _grown(record: Record, tokens: list[int]) -> tuple[Any, str | None]:
    """The constraint's state after the tokens, and why there is none where the constraint failed."""
    if record.request.constraint is None:
        return record.grammar, None
    try:
        return grammar.advanced(record.request.constraint, record.grammar, tokens), None
    except Exception as error:
        return record.grammar, f"the constraint failed with {type(error).__name__}: {error}"


def _generation(record: Record, reason: str, error: str | None) -> Generation:
    request, made = record.request, list(record.run.tokens[record.run.prompt :])
    likeliest = list(record.likeliest) if request.logprobs else None
    scored = list(record.prompt_logprobs) if request.prompt_logprobs else None
    return Generation(made, "".join(record.said), reason, list(record.logprobs), record.stats, likeliest, scored, error)


def _moved(state: EngineState, judgements: Sequence[Judgement]) -> store.Store:
    """Accepted rows of trees lie together from here on, in every layer."""
    sources: list[int] = []
    targets: list[int] = []
    tables = {entry.id: entry.table for entry in state.work.running}
    for one in judgements:
        kept = [] if one.kept is None else one.kept.tolist()
        if kept == list(range(len(kept))):
            continue
        last = one.lane.stop - 1
        slots = table.slots(tables[one.lane.id], last, last + kept[-1] + 1, page_size=state.config.page_size)
        sources += [slots[row] for row in kept]
        targets += slots[: len(kept)]
    return store.move(state.store, sources, targets) if sources else state.store
