"""Which file of a folder holds which tensor."""

import pytest

from specdec_fn.weights import safetensors


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["model.safetensors", "other.safetensors"], "model.safetensors"),
        (["config.json", "only.safetensors"], "only.safetensors"),
        (["a.safetensors", "b.safetensors"], None),
        (["pytorch_model.bin"], None),
        ([], None),
    ],
)
def test_the_file_that_holds_everything(files: list[str], found: str | None) -> None:
    assert safetensors.single(files) == found


@pytest.mark.parametrize("index", [None, [], {}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}, {"weight_map": {"a": "../b"}}])
def test_an_index_of_another_shape_is_refused(index: object) -> None:
    with pytest.raises(ValueError, match="no weight_map from tensor names to names of files in the same folder"):
        safetensors.shards(index, ["b"])


def test_a_missing_shard_is_named() -> None:
    where = {"weight_map": {"x": "1.safetensors", "y": "2.safetensors", "z": "3.safetensors"}}
    with pytest.raises(ValueError, match=r"names '2\.safetensors', which is not in the folder; 2 of 3 files are missing"):
        safetensors.shards(where, ["1.safetensors"])
    assert safetensors.shards(where, ["1.safetensors", "2.safetensors", "3.safetensors"]) == where["weight_map"]


@pytest.mark.parametrize("number", ["I8", "F8_E4M3", "BOOL", "U32"])
def test_numbers_that_are_no_weights_are_refused(number: str) -> None:
    with pytest.raises(ValueError, match=rf"tensor 'x' has the type {number}, which is not supported; expected one of F64, F32, F16, BF16"):
        safetensors.check_number("x", number)
