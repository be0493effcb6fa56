"""For statistical validation: the exact law of a rejection rule, yours or ours, computed from its code and not from samples.

The rule below accepts as it should and makes the most common mistake: it repairs a rejection from p instead of the residual.
Run: python examples/validate.py
"""

from specdec_fn.sampling import draw
from specdec_fn.speculate import verifiers
from specdec_fn.speculate.verdict import of_chain
from specdec_proofs.integrate import measure
from specdec_proofs.worlds import softmax


def repairs_from_p(tape, target_probs, draft):
    """Any function of this signature can be measured; it must be vmappable and read its randomness from the tape."""
    accepted = verifiers["token"].decide(tape, target_probs, draft).accepted
    return of_chain(draft, accepted, draw(tape.final, target_probs.index_select(0, accepted[None]).squeeze(0)))


def main() -> None:
    world = softmax(0)  # six tokens, three drafted, every row another law
    for name, rule in (("token, as shipped", verifiers["token"].decide), ("repairs from p", repairs_from_p)):
        measured = measure(rule, world)
        print(f"{name:18} exact joint TV {float(measured.tv):.2e}   {'lossless' if measured.tv < 1e-14 else 'NOT lossless'}")


if __name__ == "__main__":
    main()
