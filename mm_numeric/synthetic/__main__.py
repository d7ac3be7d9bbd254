"""Write the rows and the images of a generator into a folder.

python -m mm_numeric.synthetic clocks --out FOLDER rows=200 seed=3 noise_minutes=5
"""

import argparse
from pathlib import Path

from mm_numeric.io.atomic_files import atomic_folder
from mm_numeric.io.log import show
from mm_numeric.registry import GENERATORS
from mm_numeric.settings import read_dataclass, with_override
from mm_numeric.synthetic.generator import Generator


def main() -> None:
    """Execute the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m mm_numeric.synthetic",
        description="Write the rows and the images of a generator into a folder.",
    )
    parser.add_argument("name", help=f"{', '.join(GENERATORS)}, or my_package.module:Class")
    parser.add_argument("--out", type=Path, required=True, help="the folder, which is made")
    parser.add_argument("settings", nargs="*", help="settings, such as rows=200 seed=3")
    given = parser.parse_intermixed_args()
    raw = {"name": given.name}
    try:
        for override in given.settings:
            raw = with_override(raw, override)
        generator: Generator = read_dataclass(Generator, raw, given.name)
        if given.out.exists():
            raise ValueError(f"{given.out} exists; name a new folder.")
        given.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(given.out) as unfinished:
            rows = generator.write(unfinished)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    show(str(given.out / rows.name))


if __name__ == "__main__":
    main()
