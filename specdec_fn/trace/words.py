"""How a trace says things: how each rule decides in a sentence, why a token stayed or went in a line, numbers and white space one can see."""

from collections.abc import Mapping
from types import MappingProxyType

from specdec_fn.speculate.explain import Why
from specdec_fn.text import Tokenizer

__all__ = ["RULES", "because", "digits", "rule", "spelled", "visible"]

RULES: Mapping[str, str] = MappingProxyType(
    {
        "token": "Token verification: a drafted token is accepted if and only if u < p/q, the target's probability of it over the draft's; "
        "the first rejection is repaired by a draw from the residual max(p - q, 0), and a whole draft earns a bonus drawn from p "
        "(Leviathan et al. 2023, Chen et al. 2023).",
        "block": "Block verification: the draft is judged from its end, and kept up to the last token whose u < h, where h weighs the whole "
        "beginning by w = min(1, w p/q); what follows is drawn from the residual max(w p - q, 0), or from p after a whole draft (Sun et al. 2024).",
        "greedy": "Greedy verification: no uniform decides; a drafted token is accepted if and only if it is the target's first choice, and the "
        "first choice after the last accepted one is emitted (Stern et al. 2018).",
        "coupled": "Drafter-invariant coupling: no uniform decides; at every position each token x has exponential noise E(x), the least E(x)/p(x) "
        "wins and is emitted, and a drafted token is accepted if and only if it is the winner (Daliri, Musco, Suresh 2024).",
        "multi_draft": "Recursive rejection of siblings drawn with replacement: a sibling is accepted if and only if u < r/q, where r begins as p "
        "and after each rejection is the residual max(r - q, 0); if all fail, r is drawn from (Miao et al. 2023).",
        "multi_draft_without_replacement": "Recursive rejection of siblings drawn without replacement: a sibling is accepted if and only if u < r/c, "
        "where r begins as p and becomes the residual max(r - c, 0), and c, the draft's law, loses each rejected token (Chen et al. 2024).",
        "k_seq": "k-SEQ: each sibling is judged alone and accepted if and only if u < p/(rho q), with one scale rho for all siblings of a node; if "
        "all fail, what they left of p is drawn from (Sun et al. 2023).",
        "tree": "Top-down tree verification: from the context down, siblings are tried in their order and one is accepted if and only if u < r/c, "
        "where r begins as p and becomes the residual max(r - c, 0) after each rejection (Miao et al. 2023, Chen et al. 2024).",
        "traversal": "Traversal verification: nodes are judged from the leaves up, and the whole path to the first with u < w is accepted, where w "
        "is min(1, w p/q) along the path, less what the node's rejected children took (Weng et al. 2025).",
        "typical": "Typical acceptance (not lossless): no uniform decides; a drafted token is accepted if and only if p is above a threshold, "
        "min(epsilon, delta exp(-entropy)), and a rejected one is replaced by a draw from p (Cai et al. 2024).",
        "lenient": "Lenient verification (not lossless): a drafted token is accepted if and only if u < p/(lenience q); the first rejection is "
        "repaired by a draw from the residual max(p - q, 0) (Leviathan et al. 2023).",
    }
)
BOUNDS: Mapping[str, str] = MappingProxyType(
    {
        "token": "p/q",
        "block": "h",
        "lenient": "p/(lenience q)",
        "multi_draft": "r/q",
        "multi_draft_without_replacement": "r/c",
        "tree": "r/c",
        "k_seq": "p/(rho q)",
        "traversal": "w",
    }
)
MARKS: Mapping[int, str] = MappingProxyType({ord(" "): "␣", ord("\n"): "⏎", ord("\t"): "⇥"})
PLACES, MOST = 3, 17


def rule(verifier: str) -> str:
    """How a verifier decides, in one sentence.

    >>> rule("greedy")[:20]
    'Greedy verification:'
    """
    return RULES.get(verifier, f"{verifier}: a rule of one's own; p, q and the uniforms that stood for its nodes are shown as they were.")


def because(verifier: str, why: Why) -> str:
    """What decided a node or a final token, in one line.

    >>> because("token", Why(5, "rejected", 0.41, 1.0, 0.83, 0.41, None, -1))
    'u = .830 ≥ p/q = .410'
    """
    if why.kind in ("recovered", "bonus", "plain"):
        return _of_final(verifier, why)
    if why.kind == "unread":
        return "not judged"
    kept = why.kind == "accepted"
    if verifier == "greedy":
        return "the target's first choice" if kept else "not the target's first choice"
    if verifier == "coupled":
        return f"won its race, noise {digits(why.noise)}" if kept and why.noise is not None else "another token won the race"
    if why.bound is None:
        return "kept by a later node" if kept and why.u is None else "" if why.u is None else f"u = {digits(why.u)}"
    if why.u is None:
        return f"p = {_pair(why.p, why.bound)[0]} {'>' if kept else '≤'} threshold = {_pair(why.p, why.bound)[1]}"
    name = BOUNDS.get(verifier, "bound")
    u, bound = _pair(why.u, why.bound)
    return f"u = {u} {'<' if kept else '≥'} {f'min(1, {name})' if why.bound == 1 else name} = {bound}"


def _of_final(verifier: str, why: Why) -> str:
    if verifier == "greedy":
        return "the target's first choice"
    if verifier == "coupled":
        return "won its race" + ("" if why.noise is None else f", noise {digits(why.noise)}")
    drawn = "from the residual" if why.kind == "recovered" and verifier != "typical" else "from p"
    return f"drawn {drawn}" + ("" if why.u is None else f", u = {digits(why.u)}")


def digits(number: float, places: int = PLACES) -> str:
    """A number to some decimal places, and to more where it would look like 0 or 1 without being that.

    >>> digits(0.83333), digits(1.0), digits(0.99999), digits(0.0000123), digits(2.5)
    ('.833', '1', '.99999', '1.2e-05', '2.500')
    """
    if number in (0, 1):
        return str(int(number))
    if abs(number) < 10**-places:
        return f"{number:.{max(places - 2, 1)}e}"
    while places < MOST and float(f"{number:.{places}f}") == 1:
        places += 1
    return f"{number:.{places}f}".removeprefix("0")


def _pair(left: float, right: float) -> tuple[str, str]:
    """Two numbers, to as many places as tell them apart."""
    places = PLACES
    while places < MOST and left != right and digits(left, places) == digits(right, places):
        places += 1
    return digits(left, places), digits(right, places)


def visible(text: str) -> str:
    """Text whose white space and control characters can be seen.

    >>> visible(" a\\n\\x07")
    '␣a⏎⟨07⟩'
    """
    marked = text.translate(MARKS)
    return "".join(mark if mark.isprintable() else f"⟨{ord(mark):02X}⟩" for mark in marked)


def spelled(tokenizer: Tokenizer | None, token: int) -> str:
    """One token, alone, so that it can be seen: its bytes where they are no characters, its name where it is a control token.

    >>> spelled(None, 7)
    '⟨7⟩'
    """
    if tokenizer is None or token >= tokenizer.size:
        return f"⟨{token}⟩"
    text = tokenizer.decode([token], skip_special=False)
    if "\ufffd" in text and tokenizer.token_bytes is not None:
        return "".join(visible(chr(byte)) if byte < 0x80 else f"⟨{byte:02X}⟩" for byte in tokenizer.token_bytes(token, skip_special=False))
    return visible(text) if text else f"⟨{token}⟩"
