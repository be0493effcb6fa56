"""States are pytrees whose static fields stay out of the leaves; donated values die in check mode."""

import pytest
import torch
from torch.utils import _pytree as torch_pytree

from specdec_fn.pytree import DonatedError, checking, donates, state


@state(static=("size", "name"))
class Box:
    content: torch.Tensor
    size: int
    extra: torch.Tensor | None = None
    name: str = "box"


@donates("box")
def fill(box: Box, value: float) -> Box:
    return Box(box.content.fill_(value), box.size)


def test_static_fields_survive_tree_map_vmap_and_compile():
    box = Box(torch.arange(3.0), 3, name="mine")
    double = lambda b: torch_pytree.tree_map(lambda leaf: leaf * 2 if isinstance(leaf, torch.Tensor) else leaf, b)  # noqa: E731
    assert double(box).size == 3
    assert double(box).name == "mine"
    whole = Box(torch.ones(2, 3), 3, torch.ones(2))
    lifted = torch.func.vmap(lambda b: Box(b.content.sum(), b.size, b.extra))(whole)
    assert lifted.content.tolist() == [3.0, 3.0]
    assert lifted.size == 3
    assert torch.compile(double, backend="eager", fullgraph=True)(box).content.tolist() == [0.0, 2.0, 4.0]


def test_states_are_frozen():
    with pytest.raises(AttributeError):
        Box(torch.zeros(1), 1).size = 2


def test_leaves_carry_their_names():
    paths, _ = torch_pytree.tree_flatten_with_path(Box(torch.zeros(1), 1))
    assert [torch_pytree.keystr(path) for path, _ in paths] == [".content", ".extra"]


def test_an_unknown_static_name_is_refused():
    with pytest.raises(ValueError, match=r"static names \['wrong'\] are not fields"):
        state(static=("wrong",))(type("Wrong", (), {"__annotations__": {"right": int}}))


def test_outside_check_mode_a_donated_value_is_reused_in_place():
    box = Box(torch.zeros(2), 2)
    assert fill(box, 1.0).content.data_ptr() == box.content.data_ptr()


def test_in_check_mode_a_donated_value_is_dead():
    with checking():
        box = Box(torch.zeros(2), 2)
        new = fill(box, 1.0)
        assert new.content.tolist() == [1.0, 1.0]
        with pytest.raises(DonatedError, match="argument 'box' was given away"):
            fill(box, 2.0)
        assert fill(new, 3.0).content.tolist() == [3.0, 3.0]


def test_check_mode_ends_with_its_block():
    with pytest.raises(KeyError), checking():
        raise KeyError
    box = Box(torch.zeros(2), 2)
    fill(box, 1.0)
    assert fill(box, 2.0).content.tolist() == [2.0, 2.0]


def test_donating_an_unknown_parameter_is_refused():
    with pytest.raises(ValueError, match="no parameter 'pool'"):
        donates("pool")(lambda box: box)


def test_a_donating_function_says_so():
    assert fill.donated == ("box",)
