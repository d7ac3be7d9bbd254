"""Run the command line as ``python -m mm_numeric``, for torchrun and accelerate launch."""

import os
import sys


def _leave_working_directory() -> None:
    """Remove the working directory from the import path, where ``python -m`` puts it first.

    Files of another user could be imported from there. The directory stays in the path if it is a
    checkout of this library, which may not be installed.
    """
    first = os.path.realpath(sys.path[0])
    library = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not sys.flags.safe_path and first == os.path.realpath(os.getcwd()) != library:
        del sys.path[0]


if __name__ == "__main__":
    _leave_working_directory()
    from mm_numeric.cli.main import main

    sys.exit(main())
