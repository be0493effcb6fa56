"""Building the C library: each target gives the same bits, and whatever keeps it from being built costs one line and nothing else."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec_fn import random
from specdec_fn.kv import dense
from specdec_fn.models import Model, invariant, toy
from specdec_fn.models.quantized import quantized
from specdec_kernels import native
from specdec_kernels.packed import packed
from specdec_kernels.race_uniform import race_uniform
from specdec_kernels.rows import rows

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
KINDS = ("int8", "q8_0", "q4_0", "q4_1")
PATIENCE = 250


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """One for each target: the one in use, and two that are built here, with less care, since no care may change a bit."""
    assert native.wait(), native.status()
    folder, made = tmp_path_factory.mktemp("targets"), {}
    for target, level in (("avx2", "-O1"), ("portable", "-O0")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "FLAGS", (level, *native.FLAGS[1:]))
            patch.setattr(native, "OPTIONS", {**dict(native.OPTIONS), "portable": ()}.items())
            made[target] = native._opened(native.build(folder, target=target))
    assert not [path for path in folder.iterdir() if path.is_dir()], "what a build leaves beside its library"
    return {"native": native._BUILD.loaded, **made}


@contextmanager
def using(library: ctypes.CDLL) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native._BUILD, "loaded", library)
        yield


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_each_is_what_it_is_called(libraries: dict[str, ctypes.CDLL]) -> None:
    named = {target: ctypes.string_at(library.specdec_isa()).decode() for target, library in libraries.items()}
    assert (named["avx2"], named["portable"]) == ("avx2", "portable")
    assert named["native"] in native.status()


@pytest.mark.parametrize("inputs", [1, 7, 40, 96, 576])
def test_products_of_floats_have_the_same_bits_on_every_processor(libraries: dict[str, ctypes.CDLL], inputs: int) -> None:
    x, plain = numbers(9, inputs), numbers(21, inputs, seed=1)
    weights: list[Any] = [plain.to(dtype) for dtype in FLOATS] + [packed(plain, "int8", activations="float32")]
    weights += [packed(plain, kind, activations="float32") for kind in KINDS[1:] if inputs % 32 == 0]
    wanted = [rows(x, weight, impl="native") for weight in weights]
    for target, library in libraries.items():
        with using(library):
            for weight, expected in zip(weights, wanted, strict=True):
                assert torch.equal(rows(x, weight, impl="native"), expected), (target, getattr(weight, "kind", weight.shape))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [32, 96, 576])
def test_products_of_eight_bits_are_close_on_every_processor_and_their_rows_apart(libraries: dict[str, ctypes.CDLL], kind: str, inputs: int) -> None:
    """Sums of integers are the same; where the groups are added up, the order is the processor's own."""
    x, weight = numbers(9, inputs), packed(numbers(21, inputs, seed=1), kind)
    wanted = rows(x, weight, impl="native")
    for library in libraries.values():
        with using(library):
            out = rows(x, weight, impl="native")
            torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
            assert torch.equal(torch.cat([rows(row, weight, impl="native") for row in x.split(1)]), out)
            sick = x.clone()
            sick[2, 5] = float("nan")
            assert rows(sick, weight, impl="native")[2].isnan().all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (10, 2, 80), (8, 1, 128), (6, 6, 16)])
def test_attention_has_the_same_bits_on_every_processor(
    libraries: dict[str, ctypes.CDLL], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    """Scores of all sizes: the exponential is ours."""
    given = [(numbers(150, n, head_dim, seed=n) * 3).to(dtype) for n in (heads, kv_heads, kv_heads)]

    def run() -> torch.Tensor:
        cache = dense.init(SimpleNamespace(layers=1, kv_heads=kv_heads, head_dim=head_dim), 150, dtype=dtype)
        return dense.attend_invariant(cache, 0, *given)[0]

    wanted = run()
    for library in libraries.values():
        with using(library):
            assert torch.equal(run(), wanted)


def small(dtype: torch.dtype = torch.float32) -> Model:
    return toy.llama(random.key(0), vocab_size=50, layers=3, width=64, heads=4, kv_heads=2, head_dim=16, ffn=96, dtype=dtype)


def decoded(model: Model) -> torch.Tensor:
    cache, out = dense.init(model.config, 30, dtype=model.params.norm.dtype), []
    for start, end in ((0, 20), (20, 21), (21, 30)):
        tokens = torch.arange(start, end) * 7 % 50
        logits, cache = model.apply(model.params, tokens, torch.arange(start, end), cache, dense.attend_invariant)
        cache = dense.advance(cache, end - start)
        out.append(logits)
    return torch.cat(out)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_whole_pass_has_the_same_bits_on_every_processor(libraries: dict[str, ctypes.CDLL], dtype: torch.dtype) -> None:
    model = invariant(small(dtype))
    wanted = decoded(model)
    for library in libraries.values():
        with using(library):
            assert torch.equal(decoded(model), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_model_is_the_same_on_every_processor(libraries: dict[str, ctypes.CDLL], kind: str) -> None:
    model = invariant(quantized(small(), kind))
    wanted = decoded(model)
    for library in libraries.values():
        with using(library):
            assert (decoded(model) - wanted).pow(2).mean().sqrt() < 0.05 * wanted.pow(2).mean().sqrt()


def test_random_bits_are_the_same_on_every_processor(libraries: dict[str, ctypes.CDLL]) -> None:
    keys = torch.arange(6).reshape(3, 2)
    for library in libraries.values():
        with using(library):
            assert torch.equal(race_uniform(keys, 37, impl="native"), race_uniform(keys, 37, impl="torch"))


# What keeps it from being built


def stub(folder: Path, lines: str) -> str:
    """A compiler of our own."""
    path = folder / "mycc"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


CASES = {
    "fails": ("false", None, "the C compiler 'false' failed with status 1: no message"),
    "makes nothing": ("true", None, ""),
    "is not there": ("no-such-compiler", None, "the C compiler 'no-such-compiler' is not there; expected one on the path, or its name in CC"),
    "has no name": ("", None, "the C compiler '' is not there; expected one on the path, or its name in CC"),
    "is half a line": ("cc 'x", None, "No closing quotation"),
    "says why": ("echo 'a.c:1: error: no vector units' >&2; echo more; exit 3", "script", "failed with status 3: a.c:1: error: no vector units"),
    "makes no library": ('for last; do :; done; case "$*" in *-shared*) echo x > "$4";; esac', "script", ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_compiler_that_cannot_build(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning of one line, once; and everything goes on through torch."""
    command, script, message = CASES[case]
    monkeypatch.setenv("CC", stub(tmp_path, command) if script else command)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    failed(monkeypatch, message)
    folder = tmp_path / "cache"
    assert not folder.exists() or not [path for path in folder.iterdir() if path.is_dir()]


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "file"
    place.write_text("in its place")
    for folder in (place, place / "inside"):
        monkeypatch.setenv("SPECDEC_CACHE", str(folder))
        failed(monkeypatch, str(place))
    assert place.read_text() == "in its place"
    with pytest.raises(OSError, match="file"):
        native.build(place)


def failed(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    monkeypatch.setattr(native, "_BUILD", native._Build())
    with pytest.warns(RuntimeWarning) as caught:
        assert not native.wait()
    (said,) = (str(one.message) for one in caught)
    assert said == native.status()
    assert said.startswith("no C kernels, torch multiplies instead: ")
    assert message in said
    assert "\n" not in said
    assert "Traceback" not in said
    x, weight = numbers(3, 32), numbers(5, 32, seed=1)
    assert torch.equal(rows(x, weight), rows(x, weight, impl="torch"))  # and no second warning, which would be an error here
    assert decoded(small()).isfinite().all()
    assert decoded(invariant(small())).isfinite().all()
    assert decoded(quantized(small(), "q4_0")).isfinite().all()
    with pytest.raises(ValueError, match="impl is 'native', and the library cannot run here"):
        rows(x, weight, impl="native")


def test_an_unknown_target() -> None:
    with pytest.raises(ValueError, match="target is 'sse'; expected one of native, avx2, portable"):
        native.build(target="sse")


# A build for any processor without care takes seconds.
QUICK = 'for word; do shift; case "$word" in -O3) set -- "$@" -O0;; -march=*) ;; *) set -- "$@" "$word";; esac; done; exec cc "$@"'

TWICE = """
import json, sys
from pathlib import Path
from specdec_kernels import native
import torch
from specdec_kernels.rows import rows
there = native.wait()
torch.ones(300, 300) @ torch.ones(300, 300)
out = rows(torch.ones(1, 32), torch.ones(3, 32), impl="native").tolist()
lines = [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
print(json.dumps([there, native.status(), out, sorted({line for line in lines if Path(line).name.startswith(("libgomp", "libomp", "libiomp"))})]))
"""


def environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in ("CC", "SPECDEC_CACHE")}, **more}


def test_two_processes_that_build_at_once(tmp_path: Path) -> None:
    """Both have the library, of one name, and nothing else is left but the lock; and each has one OpenMP runtime, which is torch's."""
    folder = tmp_path / "cache"
    env = environment(CC=stub(tmp_path, QUICK), SPECDEC_CACHE=str(folder))
    jobs = [subprocess.Popen([sys.executable, "-c", TWICE], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [job.communicate(timeout=PATIENCE) for job in jobs]
    answers = [json.loads(out) for out, error in said if not error]
    assert [answer[0] for answer in answers] == [True, True], said
    assert answers[0] == answers[1]
    _, status, out, runtimes = answers[0]
    assert str(folder) in status
    assert out == [[32.0, 32.0, 32.0]]
    assert len(runtimes) == 1
    assert "torch" in runtimes[0]
    assert [path.suffix for path in sorted(folder.iterdir()) if path.suffix] == [".so"]
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_a_process_that_ends_before_the_build(tmp_path: Path) -> None:
    """It does not wait, says nothing, and what it began is there for the next."""
    folder, gate = tmp_path / "cache", tmp_path / "gate"
    os.mkfifo(gate)
    slow = stub(tmp_path, f'case "$*" in *--version*) ;; *-c*) read line < {gate};; esac; exit 1')
    program = "from specdec_kernels import native; native.begin(); import time\nwhile not list(__import__('pathlib').Path(r'%s').glob('*')): pass"
    done = subprocess.run(
        [sys.executable, "-c", program % folder],
        env=environment(CC=slow, SPECDEC_CACHE=str(folder)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_command_line_says_one_line_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specdec_fn", "generate", "The capital of France is", "--temperature", "0", "--max-tokens", "3"]
    done = subprocess.run(
        command, env=environment(CC="false", SPECDEC_CACHE=str(tmp_path / "cache")), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    lines = [line for line in done.stderr.splitlines() if "kernels" in line or "Warning" in line or "warn" in line]
    assert lines == ["specdec: no C kernels, torch multiplies instead: the C compiler 'false' failed with status 1: no message"]
