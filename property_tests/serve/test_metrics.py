"""The metrics: what Prometheus reads is what an engine's events say, and clients cannot make it grow."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from specdec_fn import SamplingParams
from specdec_fn.engine import Config, Request, abort, free_pages, init, step, submit
from specdec_fn.engine.event import Event
from specdec_fn.engine.generation import Stats
from specdec_fn.engine.state import Counters
from specdec_fn.models import toy
from specdec_fn.serve import app
from specdec_fn.serve.metrics import PARTS, REASONS, ROUTES, Metrics

TARGET = toy.bigram(0.84 * torch.eye(16).roll(1, dims=1) + 0.01)  # mostly the next id, so that some of what is drafted is accepted
PROMPT = [1, 2, 3, 4, 1, 2, 3]
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def read(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample by its name and the values of its labels, in the order of their names."""
    text, kind = metrics.render()
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def request(proposer: str, **more: object) -> Request:
    return Request(PROMPT, **{"max_tokens": 24, "sampling": SamplingParams(), "seed": 3, "proposer": proposer, "k": 3, "explain": True, **more})


@pytest.fixture(scope="module")
def told() -> tuple[Metrics, list[Event], dict[int, str], Stats]:
    """A run of five requests on few pages, of which one is called off: the metrics, the events, who drafted for whom, and what the last came to."""
    metrics, state = Metrics("toy"), init(TARGET, Config(page_size=2, num_pages=24, prefill_chunk=4))
    names = {}
    for proposer, more in (("ngram", {}), ("none", {}), ("ngram", {"seed": 4}), ("suffix", {}), ("ngram", {"seed": 5})):
        state, number = submit(state, request(proposer, **more))
        names[number] = proposer
    last, events, stats = number, [], None
    while len(state.records):
        state, some = step(TARGET, state)
        if stats is None and any(event.request_id == last and event.tokens for event in some) and state.records[last].stats.passes > 1:
            stats = state.records[last].stats
            state = abort(state, last)
            metrics.ended("abort", names[last], stats)
        laps = dict.fromkeys(PARTS, 0.25)
        running = len(state.work.running)
        waiting = len(state.records) - running
        metrics.stepped(state.counters, some, laps, waiting=waiting, running=running, free_pages=free_pages(state), pages=24)
        for event in some:
            if event.generation is not None:
                metrics.ended(event.generation.finish_reason, names[event.request_id], event.generation.stats)
        events += some
    assert stats is not None, "the last request was to be called off before it ended"
    assert state.counters.preempted, "the pages were to be too few"
    return metrics, events, names, stats


def test_totals_are_what_the_events_say(told: tuple[Metrics, list[Event], dict[int, str], Stats]) -> None:
    metrics, events, _, _ = told
    found = read(metrics)
    passes = [event for event in events if event.tokens]
    assert found["specdec_emitted_tokens_total"][()] == sum(len(event.tokens) for event in passes)
    assert found["specdec_proposed_tokens_total"][()] == sum(event.proposed for event in passes)
    assert found["specdec_accepted_tokens_total"][()] == sum(event.kinds.count("accepted") for event in passes) > 0
    assert found["specdec_passes_total"][()] == found["specdec_pass_tokens_count"][()] == len(passes)
    assert found["specdec_pass_tokens_sum"][()] == found["specdec_emitted_tokens_total"][()]
    sizes = Counter(len(event.tokens) for event in passes)
    for most in range(1, 9):
        assert found["specdec_pass_tokens_bucket"][(f"{most:.1f}",)] == sum(count for size, count in sizes.items() if size <= most)
    assert found["specdec_submitted_total"][()] == 5
    assert found["specdec_prompt_tokens_total"][()] == 5 * len(PROMPT)
    assert found["specdec_preemptions_total"][()] > 0
    assert 0 < found["specdec_cached_prompt_tokens_total"][()] < 5 * len(PROMPT)
    assert found["specdec_model_info"] == {("toy",): 1}


def test_positions_and_proposers_are_what_explained_passes_say(told: tuple[Metrics, list[Event], dict[int, str], Stats]) -> None:
    metrics, events, names, _ = told
    drafted, accepted, of = Counter[str](), Counter[str](), {field: Counter[str]() for field in ("proposed", "accepted", "emitted", "passes")}
    aborted = names_aborted(events, names)
    for event in events:
        if not event.tokens or event.request_id == aborted:
            continue
        kept, proposer = event.kinds.count("accepted"), names[event.request_id]
        assert event.why is not None
        for place in range(1, len(event.why.nodes) + 1):
            drafted[str(place)] += 1
            accepted[str(place)] += place <= kept
        for field, amount in (("proposed", event.proposed), ("accepted", kept), ("emitted", len(event.tokens)), ("passes", 1)):
            of[field][proposer] += amount
    stats = told[3]
    for place, (seen, kept) in enumerate(stats.per_position, 1):
        drafted[str(place)] += seen
        accepted[str(place)] += kept
    for field, counts in of.items():
        counts["ngram"] += getattr(stats, field)
    found = read(metrics)
    assert found["specdec_position_drafted_total"] == {(place,): count for place, count in drafted.items()}
    assert found["specdec_position_accepted_total"] == {(place,): accepted[place] for place in drafted}
    for field, name in (("proposed", "proposed_tokens"), ("accepted", "accepted_tokens"), ("emitted", "emitted_tokens"), ("passes", "passes")):
        assert found[f"specdec_proposer_{name}_total"] == {(proposer,): of[field][proposer] for proposer in ("ngram", "none", "suffix")}
    ended = Counter(event.finish_reason for event in events if event.finish_reason)
    assert found["specdec_ended_total"] == {(reason,): ended[reason] + (reason == "abort") for reason in (*REASONS, "other")}


def names_aborted(events: list[Event], names: dict[int, str]) -> int:
    """The one request without an end."""
    (number,) = set(names) - {event.request_id for event in events if event.finish_reason}
    return number


def test_gauges_are_of_the_last_step_and_parts_add_up(told: tuple[Metrics, list[Event], dict[int, str], Stats]) -> None:
    found = read(told[0])
    assert found["specdec_requests_waiting"][()] == found["specdec_requests_running"][()] == 0
    assert found["specdec_pages_free"][()] == found["specdec_pages"][()] == 24
    steps = found["specdec_step_part_seconds_count"][("plan",)]
    assert steps >= found["specdec_steps_total"][()] > 0
    assert found["specdec_step_part_seconds_sum"] == {(part,): 0.25 * steps for part in PARTS} | {("other",): 0}


def test_latencies_and_answers_of_http() -> None:
    metrics = Metrics("toy")
    for seconds in (0.02, 0.3):
        metrics.first(seconds)
        metrics.between(seconds / 10)
    for route, status, seconds in (("/", 200, 0.001), ("/v1/completions", 200, 2.0), ("/v1/completions", 429, 0.5)):
        metrics.arrived(route)
        metrics.answered(route, status, seconds)
    metrics.arrived("/v1/models")
    found = read(metrics)
    assert found["specdec_time_to_first_token_seconds_sum"][()] == pytest.approx(0.32)
    assert found["specdec_time_to_first_token_seconds_bucket"][("0.025",)] == 1
    assert found["specdec_time_between_tokens_seconds_count"][()] == 2
    assert found["specdec_http_request_seconds_sum"] == {("/", "200"): 0.001, ("/v1/completions", "200"): 2.0, ("/v1/completions", "429"): 0.5}
    assert found["specdec_http_requests_in_flight"] == {("/",): 0, ("/v1/completions",): 0, ("/v1/models",): 1}


def test_totals_only_grow_and_two_servers_count_apart() -> None:
    first, second = Metrics("one"), Metrics("two")
    room = {"waiting": 0, "running": 0, "free_pages": 1, "pages": 1}
    for emitted in (5, 5, 9):
        first.stepped(Counters(emitted=emitted), [Event(0, [], [], "error")], {}, **room)  # an event without tokens is no pass
    assert read(first)["specdec_emitted_tokens_total"][()] == 9
    first.stepped(Counters(emitted=2), [], {}, **room)  # an engine that began anew
    first.stepped(Counters(emitted=3), [], {}, **room)
    assert read(first)["specdec_emitted_tokens_total"][()] == 10
    assert read(first)["specdec_passes_total"][()] == read(first)["specdec_pass_tokens_count"][()] == 0
    assert read(second)["specdec_emitted_tokens_total"][()] == 0


def test_names_from_outside_do_not_make_series() -> None:
    metrics = Metrics("toy")
    for i in range(300):
        metrics.arrived(f"/{i}")
        metrics.answered(f"/{i}", 1000 + i, 0.1)
        metrics.ended(f"reason {i}", f"proposer {i}", Stats(1, 200, 0, 1, ((1, 0),) * 200))
        metrics.stepped(Counters(), [], {f"part {i}": 0.1}, waiting=0, running=0, free_pages=0, pages=0)
    found = read(metrics)
    assert found["specdec_http_request_seconds_count"] == {("other", "other"): 300}
    assert found["specdec_ended_total"][("other",)] == 300
    assert found["specdec_step_part_seconds_count"][("other",)] == 300
    assert len(found["specdec_proposer_passes_total"]) == 33
    assert sum(found["specdec_proposer_passes_total"].values()) == 300
    assert len(found["specdec_position_drafted_total"]) == 65
    assert sum(found["specdec_position_drafted_total"].values()) == 300 * 200


def test_names_that_are_joined_count_once_in_whatever_order() -> None:
    metrics = Metrics("toy")
    for joined in itertools.permutations(("ngram", "quantized", "suffix", "early_exit")):
        metrics.ended("stop", "+".join((*joined, joined[0])), Stats(1, 2, 1, 3, ()))
    metrics.ended("stop", "suffix", Stats(1, 2, 1, 3, ()))
    assert read(metrics)["specdec_proposer_passes_total"] == {("early_exit+ngram+quantized+suffix",): 24, ("suffix",): 1}


def test_nothing_of_the_process_and_no_times_of_making() -> None:
    assert all(name.startswith("specdec_") and not name.endswith("_created") for name in read(Metrics("toy")))


def test_the_routes_are_those_of_the_application() -> None:
    assert set(app.ROUTES) == set(ROUTES)


def dashboard() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]


def test_every_metric_of_the_dashboard_is_exported(told: tuple[Metrics, list[Event], dict[int, str], Stats]) -> None:
    metrics = told[0]
    metrics.arrived("/")
    metrics.answered("/", 200, 0.1)
    found = read(metrics)
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = [target["expr"] for panel in dashboard() for target in panel.get("targets", ())]
    names = {name for expression in asked for name in re.findall(r"\bspecdec_\w+", expression)}
    assert len(names) > 20
    assert names <= set(found)
    grouped = [one for expression in asked for one in re.findall(r"sum by \(([^)]*)\) \((?:rate\()?(specdec_\w+)", expression)]
    assert len(grouped) > 15
    for group, name in grouped:
        assert set(group.split(", ")) <= labels[name], f"{name} by {group}"


def test_everything_that_is_counted_is_on_the_dashboard() -> None:
    text = DASHBOARD.read_text()
    names = {sample.name for family in text_string_to_metric_families(Metrics("toy").render()[0].decode()) for sample in family.samples}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
    assert not {name for name in families if name not in text}


def test_panels_of_the_dashboard_have_ids_and_places_of_their_own() -> None:
    panels = dashboard()
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids)) > 15
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel.get("targets", ()))
