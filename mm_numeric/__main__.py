"""Run the command line as ``python -m mm_numeric``, for torchrun and accelerate launch."""

import sys

from mm_numeric.cli import main

if __name__ == "__main__":
    sys.exit(main())
