"""``specdec audit``: anyone's sampler, or a whole generator, under the proofs of this house."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["audit"]


def audit(
    name: Annotated[str | None, typer.Argument(help="module:function, a verifier such as token, or a name of --list.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the samplers that have a name, and whether they are installed.")] = False,
    generator: Annotated[bool, typer.Option("--generator", help="Take module:function as generate(context, n_tokens, seed, speculate).")] = False,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", help="How many rounds on each world (30,000); for a generator, how many outputs for each context (2,000)."),
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="With transformers: also put faults into its source text; each must be rejected.")
    ] = False,
    context: Annotated[list[str] | None, typer.Option("--context", help="Ids such as 0,1 that a generator goes on from; several times.")] = None,
    checkout: Annotated[Path | None, typer.Option("--checkout", help="Folder of a project that is no package, such as gpt-fast.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the JSON report to this file.")] = None,
    seed: o.Seed = 0,
    json_: o.Json = False,
) -> int:
    """Find the law of a sampler and compare it with the target's; exits 1 if a claim fails.

    A sampler is module:function, looked for in the current folder too, of one of two forms: a verifier (tape, target_probs, draft) -> Verdict, or a
    round (target_probs [K + 1, V], draft_probs [K, V], tokens [K]) -> the emitted ids, without padding, that draws its own numbers with torch.
    """
    if list_:
        return _listed(json_)
    if name is None:
        raise ValueError("nothing to audit; expected module:function or a name that specdec audit --list shows")
    if generator and mutants:
        raise ValueError("--generator together with --mutants; expected one of the two")
    if context and not generator:
        raise ValueError("--context without --generator; expected both")
    _writable(out)
    from specdec_proofs import audit_report
    from specdec_proofs.audit import Audit

    found = Audit(name, "", seed, rounds or 0)
    faults: list[Any] = []
    interrupted = False
    with Status(f"auditing {name}") as status:
        try:
            with redirect_stdout(sys.stderr):  # what the callable prints is not the report
                if generator:
                    for found in _generator(name, rounds, seed, context, status.say):  # noqa: B007 (the last is printed)
                        pass
                else:
                    for found in _sampler(name, rounds, seed, checkout, mutants, faults, status.say):  # noqa: B007
                        pass
        except KeyboardInterrupt:
            interrupted = True
            print("specdec: interrupted; this is what was found until then", file=sys.stderr)
    whole = audit_report.as_json(found, faults, complete=not interrupted)
    if out is not None:
        out.write_text(json.dumps(whole) + "\n", "utf-8")
    if json_:
        print(json.dumps(whole))
    else:
        console = wide_console()
        for table in audit_report.tables(found, faults):
            console.print(table)
        console.print(audit_report.conclusion(found), highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        return 130
    return 0 if whole["passed"] else 1


def _sampler(
    name: str, rounds: int | None, seed: int, checkout: Path | None, mutants: bool, faults: list[Any], say: Callable[[str], None]
) -> Iterator[Any]:
    from specdec_proofs import audit as proofs
    from specdec_proofs.suspects import find

    suspect = find(name, None if checkout is None else str(checkout))
    if mutants and suspect.mutants is None:
        raise ValueError(f"--mutants with {name}; expected it with transformers (specdec prove checks the mutants of our own rules)")
    count = 30_000 if rounds is None else rounds
    yield from proofs.run(suspect, count, seed, say)
    if mutants:
        for claim in proofs.mutants(suspect, count, seed, say):
            faults.append(claim)


def _generator(name: str, rounds: int | None, seed: int, context: list[str] | None, say: Callable[[str], None]) -> Iterator[Any]:
    from specdec_proofs import audit_generator
    from specdec_proofs.suspects.find import imported

    if ":" not in name:
        raise ValueError(f"the generator is {name!r}; expected module:function")
    generate = imported(name)
    if not callable(generate):
        raise ValueError(f"{name} is {generate!r:.60}; expected a callable generate(context, n_tokens, seed, speculate)")
    contexts = audit_generator.CONTEXTS if not context else tuple(map(_ids, context))
    yield from audit_generator.run(generate, name, 2000 if rounds is None else rounds, seed, contexts=contexts, progress=say)


def _ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(part) for part in text.split(","))
    except ValueError:
        ids = (-1,)
    if min(ids) < 0:
        raise ValueError(f"--context is {text!r}; expected ids such as 0,1")
    return ids


def _writable(out: Path | None) -> None:
    """Refuses a report path before the run, not after it."""
    if out is None:
        return
    new = not out.exists()
    try:
        with out.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ValueError(f"--out is {str(out)!r}, which cannot be written: {error.strerror}; expected a file in a folder that exists") from None
    if new:
        out.unlink()


def _listed(json_: bool) -> int:
    from rich.table import Table

    from specdec_fn.speculate import verifiers
    from specdec_proofs.suspects import named
    from specdec_proofs.suspects.find import installed

    rows = [{"name": one.name, "what": one.what, "installed": installed(one)} for one in named()]
    rows += [{"name": name, "what": f"specdec_fn: {verifier.law}", "installed": "here"} for name, verifier in verifiers.all.items()]
    if json_:
        print(json.dumps(rows))
        return 0
    made = Table(title="Samplers with a name; any other is module:function", title_justify="left")
    for heading in ("name", "what", "installed"):
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(row["name"], row["what"], row["installed"])
    wide_console().print(made)
    return 0
