"""A pure step captured once for its shapes, then run without Python between its operations: a CUDA graph on a GPU, a compiled step on a CPU.

The step must be a function of tensors whose shapes do not depend on values, and must not look at a value (``traced`` shows whether it does). What
is captured holds for the shapes, types and device of the example; anything else is refused when it is called, never captured anew in silence.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as torch_pytree

from specdec_fn.typing import Tensor

__all__ = ["capture", "traced"]

WARM = 3  # runs before a capture: libraries choose their kernels and take their memory in them


def capture(step: Callable[..., Any], *example: Any, donated: Sequence[int] = ()) -> Callable[..., Any]:
    """Captures a step for the shapes of an example.

    On a GPU every launch of the step is recorded into one graph; a call copies its arguments into the graph's own, replays it, and gives results
    of its own. On a CPU the step is traced whole (no graph break is allowed) and compiled by inductor, which takes seconds to a minute.
    The step runs on the example, several times: what it does to donated arguments must be harmless, as that of a pass of padding is.

    Args:
        step: from pytrees of tensors to a pytree of tensors. Other leaves of the arguments are constants of the capture.
        example: arguments as later ones will be.
        donated: places of arguments that the step consumes (the pool of keys and values). They are not copied: on a GPU each call must be
            given the same storage as the example.

    Returns:
        a function of the same arguments with the same results, which own their memory. It raises ValueError where an argument has another
        structure, shape, dtype, device or constant, where a donated one lies elsewhere, and where the compiled code no longer holds (another
        number of threads, say).

    Raises:
        ValueError: no tensor in the example, or tensors on several devices; ``donated`` names no argument.
        torch._dynamo.exc.Unsupported, torch.AcceleratorError: the step cannot be captured.

    >>> add = capture(lambda a, b: {"sum": a + b}, torch.ones(2), torch.zeros(2))
    >>> add(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    {'sum': tensor([4., 6.])}
    >>> add(torch.ones(3), torch.ones(3))
    Traceback (most recent call last):
    ...
    ValueError: argument 0 has a tensor of shape [3] where the captured step had [2]; expected the shapes of the example
    """
    leaves = torch_pytree.tree_leaves(example)
    devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor)}
    if len(devices) != 1:
        raise ValueError(f"the example has tensors on {sorted(map(str, devices)) or 'no device'}; expected at least one tensor, all on one device")
    if any(not 0 <= place < len(example) for place in donated):
        raise ValueError(f"donated is {list(donated)}; expected places of the {len(example)} arguments")
    run = _graphed(step, example, donated) if devices.pop().type == "cuda" else _compiled(step, example, donated)
    specs = [_spec(argument) for argument in example]

    def captured(*arguments: Any) -> Any:
        if len(arguments) != len(specs):
            raise ValueError(f"received {len(arguments)} arguments; expected {len(specs)}, as the example had")
        for place, (argument, spec) in enumerate(zip(arguments, specs, strict=True)):
            _check(place, argument, spec)
        return run(*arguments)

    return captured


def traced(step: Callable[..., Any], *example: Any) -> torch.export.ExportedProgram:
    """Traces a step whole on tensors that have shapes and no values: the proof that no shape and no branch in it depends on a value.

    Args:
        step, example: as in ``capture``.

    Raises:
        ValueError: the step looks at a value (which on a GPU would wait for it), or makes a shape of one; the message says in which operator.

    >>> [node.name for node in traced(lambda a: a + 1, torch.ones(2)).graph.nodes]
    ['arguments_0', 'add', 'output']
    >>> traced(lambda a: a[a > 0], torch.ones(2))
    Traceback (most recent call last):
    ...
    ValueError: the step makes a shape of a value in aten.nonzero.default; expected shapes that are the same whatever the values
    """
    try:
        # Stricter than export, which gives an unknown number a name and goes on. Parameters may be constants of the step.
        with FakeTensorMode(shape_env=None, allow_non_fake_inputs=True) as fake:
            step(*_map(fake.from_tensor, list(example)))
    except DynamicOutputShapeException as error:
        raise ValueError(f"the step makes a shape of a value in {error.func}; expected shapes that are the same whatever the values") from None
    except DataDependentOutputException as error:
        raise ValueError(f"the step looks at a value in {error.func}; expected a step that never waits for one") from None
    return torch.export.export(_Step(step), tuple(example), strict=False)


class _Place:
    """Where a tensor was in a tree."""


class _Step(torch.nn.Module):
    """``torch.export`` takes modules only."""

    def __init__(self, step: Callable[..., Any]) -> None:
        super().__init__()
        self.step = step

    def forward(self, *arguments: Any) -> Any:
        return self.step(*arguments)


def _compiled(step: Callable[..., Any], example: Sequence[Any], donated: Sequence[int]) -> Callable[..., Any]:
    with torch.inference_mode(False), torch.no_grad():
        own = _plain(example, donated)
        made: list[Any] = []

        def flat(*leaves: Tensor) -> list[Tensor]:
            out = step(*_with(own, leaves))
            made[:] = [torch_pytree.tree_map(lambda leaf: _Place() if isinstance(leaf, Tensor) else leaf, out)]
            return _tensors(out)

        # A module of its own for each capture: compiled functions that share their code share the limit of how often it may be compiled. Its
        # arguments are bare tensors: to take trees apart inside would tie it to every kind of tree that the process knows.
        module = traced(flat, *_tensors(own)).module()
        module.graph.set_codegen(torch.fx.graph.CodeGen())
        module.recompile()
        run = torch.compile(module, fullgraph=True, dynamic=False)
        run(*_tensors(own))
        shape = made[0]

    def compiled(*arguments: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
            given = _plain(arguments, donated)
            try:
                out = run(*_tensors(given))
            except torch._dynamo.exc.RecompileError as error:
                why = str(error).strip().splitlines()[-1].strip()
                raise ValueError(f"the process is not as it was when the step was captured ({why}); expected that, or capture it again") from None
            kept = {leaf.untyped_storage().data_ptr() for place in donated for leaf in _tensors(given[place])}
            shared = {leaf.untyped_storage().data_ptr() for leaf in _tensors(given)} - kept
            return _with(shape, [leaf.clone() if leaf.untyped_storage().data_ptr() in shared else leaf for leaf in out])

    return compiled


def _plain(arguments: Sequence[Any], donated: Sequence[int]) -> list[Any]:
    """The arguments as the compiled code knows them: contiguous tensors without history, none of which is another's memory."""
    seen: set[int] = set()

    def plain(leaf: Tensor) -> Tensor:
        leaf = leaf.detach()
        place = leaf.untyped_storage().data_ptr()
        if leaf.is_inference() or place in seen or not leaf.is_contiguous():
            leaf = leaf.clone(memory_format=torch.contiguous_format)
        seen.add(place)
        return leaf

    return [argument if place in donated else _map(plain, argument) for place, argument in enumerate(arguments)]


def _graphed(step: Callable[..., Any], example: Sequence[Any], donated: Sequence[int]) -> Callable[..., Any]:
    own = [argument if place in donated else _map(torch.clone, argument) for place, argument in enumerate(example)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step(*own)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(*own)
    given = {leaf.untyped_storage().data_ptr() for place in donated for leaf in _tensors(own[place])}

    def replay(*arguments: Any) -> Any:
        for place, (mine, yours) in enumerate(zip(own, arguments, strict=True)):
            for old, new in zip(_tensors(mine), _tensors(yours), strict=True):
                if place not in donated:
                    old.copy_(new, non_blocking=True)
                elif old.data_ptr() != new.data_ptr():
                    raise ValueError(f"argument {place} lies elsewhere than the one that was captured; expected the same storage: capture again")
        graph.replay()
        return _map(lambda leaf: leaf if leaf.untyped_storage().data_ptr() in given else leaf.clone(), out)

    return replay


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return torch_pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _with(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """The tree with other tensors, in their order, where it has tensors or their places."""
    left = iter(tensors)
    leaves, structure = torch_pytree.tree_flatten(tree)
    return torch_pytree.tree_unflatten([next(left) if isinstance(leaf, Tensor | _Place) else leaf for leaf in leaves], structure)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch_pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _spec(argument: Any) -> tuple[Any, list[Any]]:
    leaves, structure = torch_pytree.tree_flatten(argument)
    return structure, [(leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _check(place: int, argument: Any, spec: tuple[Any, list[Any]]) -> None:
    structure, leaves = _spec(argument)
    if structure != spec[0]:
        raise ValueError(f"argument {place} has another structure than the captured one; expected that of the example")
    for new, old in zip(leaves, spec[1], strict=True):
        if not isinstance(old, tuple) or not isinstance(new, tuple):
            if type(new) is not type(old) or new != old:
                raise ValueError(f"argument {place} has {new!r:.40} where the captured step had {old!r:.40}; expected the example's constants")
            continue
        for name, now, then in zip(("shape", "dtype", "device"), new, old, strict=True):
            if now != then:
                now, then = (list(one) if name == "shape" else one for one in (now, then))
                what = f"argument {place} has a tensor of {name} {now} where the captured step had {then}"
                raise ValueError(f"{what}; expected the {name}s of the example")
