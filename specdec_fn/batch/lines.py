"""Files that lines are only appended to: one process has such a file at a time, and what was synced survives a power cut."""

import os
from typing import IO

__all__ = ["append", "lock", "sync_folder"]


def append(file: int, data: bytes) -> None:
    """Appends in one write, unless the system takes only a part.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     append(file.fileno(), b"a line")
    ...     os.fstat(file.fileno()).st_size
    6
    """
    while data:
        data = data[os.write(file, data) :]


def lock(file: IO[bytes]) -> bool:
    """Takes a file for this process until it is closed; False where another one has it. Systems without advisory locks have none to take.

    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     lock(file)
    True
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_folder(path: str) -> None:
    """Waits until a file's place in its folder is on the disk, on systems whose folders can be opened.

    >>> sync_folder("a file in the folder where we are")
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
