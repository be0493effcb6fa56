"""The pieces of token verification's source that mutants replace; each must stand there exactly once."""

__all__ = [
    "ACCEPT",
    "ARGMAX",
    "DRAFTED",
    "EXCESS",
    "FINAL",
    "LENGTH",
    "OWN_Q",
    "PREVIOUS",
    "REPAIR",
    "REPAIRED",
    "RETURN",
    "TAPE_FINAL",
]

# verifiers/token.py
ACCEPT = "tape.accept * q < p"
DRAFTED = f"drafted & ({ACCEPT})"
FINAL = "draw(tape.final, law)"
LENGTH = "k, length = draft.tokens.shape[0], draft.length"
OWN_Q = "_row(draft.probs, accepted)"
REPAIR = f"residual(p_row, {OWN_Q})"
REPAIRED = f"law = torch.where(rejected, {REPAIR}, p_row)"
RETURN = f"return of_chain(draft, accepted, {FINAL})"

# recover.py
EXCESS = "torch.clamp(p - q, min=0)"

# tape.py
TAPE_FINAL = "uniform(address(key, FINAL, position), (), dtype)"

# replacements that several mutants use
ARGMAX = "_row(torch.eye(p_row.shape[0], dtype=p_row.dtype), {}.argmax())"
PREVIOUS = "(accepted - 1).clamp(min=0)"
