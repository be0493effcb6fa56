"""A model small enough that a command takes milliseconds, written by the gguf package, and a way to give commands in this process."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

from specdec_fn.cli import main

WIDTH, FFN, HEADS, CONTEXT = 16, 24, 2, 512
CONTROLS = ("<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def alphabet() -> list[str]:
    """The 256 bytes as tokens, in the byte alphabet of GPT-2."""
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in PRINTABLE else chr(next(shifted)) for byte in range(256)]


def write(
    path: Path, *, architecture: str = "llama", context: int = CONTEXT, leave_out: str = "", spoil: float | None = None, words: int = 0
) -> Path:
    """A one-layer model with a vocabulary of the bytes, "ab" and two control tokens.

    ``leave_out`` a tensor by its name, ``spoil`` the last norm with a number, list ``words`` more tokens than the embedding has rows.
    """
    tokens = [*alphabet(), "ab", *CONTROLS, *(f"extra{i}" for i in range(words))]
    rows, numbers = 257 + len(CONTROLS), np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * len(CONTROLS) + [1] * words)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    half = WIDTH // HEADS
    shapes = {
        "token_embd.weight": (rows, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": (WIDTH, WIDTH),
        "blk.0.attn_k.weight": (half, WIDTH),
        "blk.0.attn_v.weight": (half, WIDTH),
        "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (FFN, WIDTH),
        "blk.0.ffn_up.weight": (FFN, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, FFN),
    }
    for name, shape in shapes.items():
        values = np.ones(shape) if "norm" in name else numbers.normal(size=shape) * (1.0 if name.startswith("token") else WIDTH**-0.5)
        if spoil is not None and name == "output_norm.weight":
            values[0] = spoil
        if name != leave_out:
            writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that works."""
    return write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with room for much text."""
    return write(tmp_path_factory.mktemp("long") / "long.gguf", context=100_000)


@pytest.fixture
def broken(tmp_path: Path, tiny: Path) -> Callable[[str], Path]:
    """Files that are no model, by the fault they have."""

    def damaged(change: Callable[[bytes], bytes]) -> Path:
        path = tmp_path / "damaged.gguf"
        path.write_bytes(change(tiny.read_bytes()))
        return path

    def make(fault: str) -> Path:
        # A tensor's row in the file's table: name, number of axes, axes, then its type.
        row = b"output_norm.weight" + (1).to_bytes(4, "little") + WIDTH.to_bytes(8, "little")
        alignment = b"\x11\0\0\0\0\0\0\0general.alignment" + (4).to_bytes(4, "little") + bytes(4)
        head = tiny.read_bytes()[:24]
        faults: dict[str, Callable[[], Path]] = {
            "missing": lambda: tmp_path / "nothing.gguf",
            "not a gguf": lambda: damaged(lambda data: b"PK" + data),
            "empty": lambda: damaged(lambda data: b""),
            "cut in the head": lambda: damaged(lambda data: data[:200]),
            "cut in a tensor": lambda: damaged(lambda data: data[:-40]),
            "alignment 0": lambda: damaged(
                lambda data: head[:16] + (int.from_bytes(head[16:], "little") + 1).to_bytes(8, "little") + alignment + data[24:]
            ),
            "type": lambda: damaged(lambda data: data.replace(row + bytes(4), row + (77).to_bytes(4, "little"))),
            "tensor": lambda: write(tmp_path / "tensor.gguf", leave_out="blk.0.ffn_up.weight"),
            "architecture": lambda: write(tmp_path / "other.gguf", architecture="mamba"),
            "vocabulary": lambda: write(tmp_path / "words.gguf", words=3),
            "nan": lambda: write(tmp_path / "nan.gguf", spoil=float("nan")),
            "folder": lambda: tmp_path,
        }
        return faults[fault]()

    return make


class Run(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def specdec(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """Runs ``specdec`` on arguments, in this process."""

    def run(*arguments: Any, stdin: str = "") -> Run:
        capsys.readouterr()
        monkeypatch.delenv("COLUMNS", raising=False)  # tables are as wide as they are for a file
        monkeypatch.setattr(sys, "argv", ["specdec", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return Run(code, printed.out, printed.err)

    return run
