"""The C library beside the kernels: compiled at first use for the processor at hand, kept in a cache folder, loaded once a process.

The sources are in ``c/``. They are compiled by the system's C compiler (``CC``, else ``cc``) in the background, and linked to the OpenMP runtime that
torch has loaded: with two runtimes in one process, two teams of threads would fight for the same cores. Where that cannot be done, everything
runs on torch, and one warning says why. The folder is ``SPECDEC_CACHE``, else ``specdec_fn`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["begin", "build", "library", "loaded", "ready", "status", "wait"]

SOURCES = ("attend.c", "noise.c", "pack.c", "pass.c", "rows.c", "step.c")
HEADERS = ("attend.h", "rows.h", "step.h", "team.h", "vector.h")
# No contraction: a product and a sum round apart unless the source says fma, so that every processor gives the same bits.
FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fopenmp", "-fPIC")
TARGETS = ("native", "avx2", "portable")
OPTIONS = {"native": ("-march=native",), "avx2": ("-mavx2", "-mfma", "-mf16c"), "portable": ("-O2",)}.items()
PATIENCE = 300.0  # seconds after which a compiler is given up
NICE = 5  # whoever decodes meanwhile comes first, but a long answer does not keep the build from its end


class _Build:
    """The one build of a process, and what came of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.thread: threading.Thread | None = None
        self.loaded: ctypes.CDLL | None = None
        self.message = "the C kernels are not asked for yet"
        self.told = False

    def begin(self) -> None:
        with self.lock:
            if self.thread is None:
                self.message = "the C kernels are being compiled; until then torch multiplies"
                self.thread = threading.Thread(target=self._run, name="specdec-native", daemon=True)
                self.thread.start()

    def _run(self) -> None:
        try:
            path = _built_apart()
            self.loaded = _opened(path)
            isa = ctypes.string_at(self.loaded.specdec_isa()).decode()
            self.message = f"C kernels for {isa} from {path}"
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.message = f"no C kernels, torch multiplies instead: {' '.join(str(error).split())}"
        finally:
            self.done.set()


_BUILD = _Build()


def begin() -> None:
    """Starts the build in the background, if it has not begun.

    >>> begin()
    """
    if _BUILD.thread is None:
        _BUILD.begin()


def ready() -> bool:
    """Whether the library can be called now; starts the build and does not wait for it.

    >>> isinstance(ready(), bool)
    True
    """
    return library() is not None


def library() -> ctypes.CDLL | None:
    """The library, or None while it is being built and where it cannot be; starts the build and does not wait for it.

    Where the build has failed, the first call afterwards warns, once a process.

    >>> library() is None or library().specdec_isa() is not None
    True
    """
    made = _BUILD.loaded
    if made is None:
        begin()
        if _BUILD.done.is_set() and not _BUILD.told and _BUILD.loaded is None:
            _BUILD.told = True
            warnings.warn(_BUILD.message, RuntimeWarning, stacklevel=2)
    return made


def loaded() -> ctypes.CDLL | None:
    """The library where it is there already; starts no build, for what is not worth one.

    >>> loaded() is None or loaded() is library()
    True
    """
    return _BUILD.loaded


def wait() -> bool:
    """Waits until the library is built or cannot be; whether it can be called.

    >>> wait() == ready()
    True
    """
    begin()
    _BUILD.done.wait()
    return ready()


def status() -> str:
    """One line: what the library is, or why there is none.

    >>> "C kernels" in status()
    True
    """
    return _BUILD.message


def build(folder: str | os.PathLike[str] | None = None, *, target: str = "native") -> Path:
    """Compiles the library into a folder, unless it is there.

    Its name tells the sources, the compiler, the processor and torch's runtime apart, so that one folder serves many machines and versions. It is
    written beside its place and moved there, so that builds may run at once.

    Args:
        folder: where to; None for the cache folder.
        target: "native" for this processor, "avx2", or "portable" for any.

    Returns:
        The path of the library.

    Raises:
        ValueError: another target, no compiler, or one that fails. OSError: a folder that cannot be written.

    >>> build(target="vax")
    Traceback (most recent call last):
    ...
    ValueError: target is 'vax'; expected one of native, avx2, portable
    """
    if target not in TARGETS:
        raise ValueError(f"target is {target!r}; expected one of {', '.join(TARGETS)}")
    return _build(_compiler(), Path(folder) if folder is not None else _folder(), target, _runtime())


def _build(command: list[str], place: Path, target: str, runtime: Path | None) -> Path:
    source, options = Path(__file__).parent / "c", dict(OPTIONS)[target]
    path = place / f"specdec-{_mark(source, command, runtime, options)}.so"
    if path.exists():
        return path
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place), tempfile.TemporaryDirectory(dir=place) as made:
        if path.exists():
            return path
        objects = [Path(made) / f"{Path(name).stem}.o" for name in SOURCES]
        _run([[*command, *FLAGS, *options, "-c", str(source / name), "-o", str(out)] for name, out in zip(SOURCES, objects, strict=True)])
        new = Path(made) / path.name
        _run([[*command, "-shared", "-o", str(new), *map(str, objects), *([str(runtime)] if runtime else ["-fopenmp"]), "-lm"]])
        os.replace(new, path)
    return path


def _built_apart() -> Path:
    """Builds in a process of its own, which goes on if this one ends first: what is begun is there the next time."""
    command, place, runtime = _compiler(), _folder(), _runtime()
    path = place / f"specdec-{_mark(Path(__file__).parent / 'c', command, runtime, dict(OPTIONS)['native'])}.so"
    if path.exists():
        return path
    job = [sys.executable, "-I", __file__, str(place), "" if runtime is None else str(runtime)]
    done = subprocess.run(job, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or ["the build ended without a message"])[-1])
    return path


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """One build at a time in a folder, where the system can say so: a second would only take the cores."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(place / "building", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(commands: list[list[str]]) -> None:
    """Runs commands side by side, and raises what the first that failed has said."""
    jobs = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL) for one in commands]
    try:
        said = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    for job, text in zip(jobs, said, strict=True):
        if job.returncode:
            lines = text.strip().splitlines() or ["no message"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise ValueError(f"the C compiler {commands[0][0]!r} failed with status {job.returncode}: {first}")


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise ValueError(f"the C compiler {' '.join(command)!r} is not there; expected one on the path, or its name in CC")
    return command


def _folder() -> Path:
    named = os.environ.get("SPECDEC_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "specdec_fn"


def _mark(source: Path, command: list[str], runtime: Path | None, options: tuple[str, ...]) -> str:
    """Everything that the library depends on, in sixteen digits."""
    digest = hashlib.sha256()
    for name in (*SOURCES, *HEADERS):
        digest.update((source / name).read_bytes())
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL).stdout
    for part in (version, str(FLAGS), str(options), str(runtime), platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _runtime() -> Path | None:
    """The OpenMP runtime that this process has loaded, which torch brings."""
    import torch

    torch.get_num_threads()
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    files = (line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return next((Path(file) for file in files if Path(file).name.startswith(("libgomp", "libomp", "libiomp"))), None)


def _opened(path: Path) -> ctypes.CDLL:
    made = ctypes.CDLL(str(path))
    made.specdec_isa.restype = ctypes.c_void_p
    for name in ("specdec_step", "specdec_rows", "specdec_attend", "specdec_noise", "specdec_threefry", "specdec_pass", "specdec_int4"):
        getattr(made, name).restype = ctypes.c_int
    return made


if __name__ == "__main__":  # the process that ``_built_apart`` starts
    if hasattr(os, "nice"):
        os.nice(NICE)
    try:
        _build(_compiler(), Path(sys.argv[1]), "native", Path(sys.argv[2]) if sys.argv[2] else None)
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        sys.exit(" ".join(str(problem).split()))
