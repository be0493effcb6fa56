"""``specdec prove``: the claims of exactness, each with its figure and its gate."""

import json
from typing import Annotated

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import Status, wide_console

__all__ = ["prove"]


def prove(
    quick: Annotated[bool, typer.Option("--quick", help="Every exact law, and statistics for mutants up to 1e5 draws; within a minute.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also 1,000 repetitions of 1e5 draws of the correct code; some minutes.")] = False,
    json_: o.Json = False,
) -> int:
    """Compute the law of the code that ships and compare it with the target's; exits 1 if a claim fails."""

    from specdec_proofs import claims, report

    if quick and deep:
        raise ValueError("--quick together with --deep; expected one of the two")
    found: list[claims.Claim] = []
    interrupted = False
    with Status("proving") as status:
        try:
            for claim in claims.run(deep=deep, progress=lambda name: status.say(f"{len(found)} claims checked; {name}")):
                found.append(claim)
        except KeyboardInterrupt:
            interrupted = True
    if json_:
        print(json.dumps(report.as_json(found)))
    else:
        wide_console().print(report.table(found))
    if interrupted:
        return 130
    return 0 if all(claim.passed for claim in found) else 1
