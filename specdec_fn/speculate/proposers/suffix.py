"""Suffix drafting: the longest end of the text that stood there before, and what most often followed it.

A suffix automaton (Blumer et al. 1985) grows with the committed tokens, O(1) amortised a token: its states are the classes of substrings that end
at the same places, and a state's link leads to the longest suffix that ends at more of them. So the link of the state of the whole text is the
longest suffix that occurs earlier, whatever its length, and the places below that state in the tree of links are where it ended. From there the
draft goes on token by token: of all these places, those that agree with the draft so far vote for the next token, the most recent one decides a
tie. A place that runs into the end of the text goes on with the draft itself, as text that repeats does.

The state is persistent: a step shares all that it does not change with the state before it, which stays valid for a fork or a replay.
No law: the draft is one-hot, which is lossless. Source: SuffixDecoding (arXiv 2411.04975), which uses a suffix tree.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rpds import HashTrieMap

from specdec_fn.random import Key
from specdec_fn.speculate.draft import Draft, chain
from specdec_fn.speculate.proposer import Proposer

__all__ = ["Automaton", "Node", "continuation", "extend", "match", "proposer"]


class Node(NamedTuple):
    """A state of the automaton.

    Attributes:
        length: tokens of its longest substring.
        link: the state of the longest suffix that ends at more places; -1 at the root.
        edges: token -> the state that it leads to.
        below: the states whose link is this one, as keys.
        end: the number of tokens that end with it, where it was made for them; 0 for the root and for copies.
    """

    length: int
    link: int
    edges: HashTrieMap
    below: HashTrieMap
    end: int


class Automaton(NamedTuple):
    """The suffix automaton of some tokens.

    Attributes:
        nodes: number -> ``Node``; 0 is the root.
        last: the state of all tokens.
        size: how many tokens it has read.
    """

    nodes: HashTrieMap = HashTrieMap({0: Node(0, -1, HashTrieMap(), HashTrieMap(), 0)})
    last: int = 0
    size: int = 0


def extend(automaton: Automaton, tokens: Sequence[int]) -> Automaton:
    """Reads tokens behind those that were read before; the automaton that came in stays as it is.

    >>> extend(extend(Automaton(), [1, 2]), [1]) == extend(Automaton(), [1, 2, 1])
    True
    """
    nodes, last, size = automaton
    for token in tokens:
        size += 1
        new, at = len(nodes), last
        while at >= 0 and token not in (node := nodes[at]).edges:
            nodes = nodes.insert(at, Node(node.length, node.link, node.edges.insert(token, new), node.below, node.end))
            at = node.link
        link = 0
        if at >= 0:
            link, short = nodes[at].edges[token], nodes[at].length + 1
            full = nodes[link]
            if full.length > short:  # only its shorter part ends here, too: that part becomes a state of its own
                copy = new + 1
                nodes = nodes.insert(copy, Node(short, full.link, full.edges, HashTrieMap({link: True}), 0))
                nodes = nodes.insert(link, full._replace(link=copy))
                above = nodes[full.link]
                nodes = nodes.insert(full.link, above._replace(below=above.below.remove(link).insert(copy, True)))
                while at >= 0 and (node := nodes[at]).edges.get(token) == link:
                    nodes = nodes.insert(at, node._replace(edges=node.edges.insert(token, copy)))
                    at = node.link
                link = copy
        nodes = nodes.insert(new, Node(size, link, HashTrieMap(), HashTrieMap(), size))
        above = nodes[link]
        nodes = nodes.insert(link, above._replace(below=above.below.insert(new, True)))
        last = new
    return Automaton(nodes, last, size)


def match(automaton: Automaton) -> tuple[int, list[int]]:
    """The longest suffix of what was read that also ends earlier: its length, and the places where it ended, ascending,
    each as the number of tokens up to it; (0, []) for none.

    >>> match(extend(Automaton(), [1, 2, 3, 1, 2, 4, 1, 2]))
    (2, [2, 5])
    """
    nodes = automaton.nodes
    found = nodes[automaton.last].link
    if found <= 0:
        return 0, []
    ends, below = [], [found]
    while below:
        node = nodes[below.pop()]
        if 0 < node.end < automaton.size:
            ends.append(node.end)
        below += node.below
    return nodes[found].length, sorted(ends)


def continuation(tokens: Sequence[int], ends: Sequence[int], k: int, least: float = 0.0) -> list[int]:
    """What most often follows some places of a text, at most ``k`` tokens.

    Args:
        tokens: the text.
        ends: ascending; each the number of tokens up to a place, at least 1 and fewer than there are.
        k: most tokens.
        least: the draft ends where the share of places that agree with all of it would fall below this.

    >>> continuation([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2], [2, 5, 8], 2)
    [3, 1]
    >>> continuation([1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2], [2, 5, 8], 2, least=0.7)
    []
    """
    line, places = list(tokens), list(ends)
    while places and len(line) < len(tokens) + k:
        ahead = len(line) - len(tokens)
        votes = Counter(line[place + ahead] for place in places)
        most = max(votes.values())
        if most < least * len(ends):
            break
        chosen = next(token for place in reversed(places) if votes[token := line[place + ahead]] == most)
        places = [place for place in places if line[place + ahead] == chosen]
        line.append(chosen)
    return line[len(tokens) :]


def proposer(shortest: int = 1, least: float = 0.0) -> Proposer:
    """A proposer that drafts what most often followed the longest suffix that stood in the text before.

    Args:
        shortest: least tokens of that suffix; where it is shorter, nothing is drafted.
        least: in [0, 1]: a draft ends where the share of earlier places that agree with all of it would fall below this.

    Raises:
        ValueError: a setting out of range.

    >>> from specdec_fn.random import key
    >>> suffix = proposer()
    >>> suffix.propose(key(0), suffix.init([]), [1, 2, 3, 1, 2], 4, position=5)[1].tokens
    tensor([3, 1, 2, 3])
    """
    if not (shortest >= 1 and 0 <= least <= 1):
        raise ValueError(f"shortest is {shortest} and least is {least}; expected at least 1 token, and a share in [0, 1]")

    def init(prompt: Sequence[int]) -> Automaton:
        del prompt  # it is read with the first draft, as it begins the tokens
        return Automaton()

    def propose(key: Key, state: Automaton, tokens: Sequence[int], k: int, *, position: int) -> tuple[Automaton, Draft]:
        del key, position
        if k < 0:
            raise ValueError(f"k is {k}; expected 0 or more tokens to propose")
        known = state if state.size <= len(tokens) else Automaton()
        state = extend(known, tokens[known.size :])
        length, ends = match(state)
        return state, chain(continuation(tokens, ends, k, least) if length >= shortest else (), k)

    return Proposer("suffix", init, propose)
