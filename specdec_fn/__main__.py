"""``python -m specdec_fn`` is ``specdec``."""

from specdec_fn.cli import main

if __name__ == "__main__":
    main()
