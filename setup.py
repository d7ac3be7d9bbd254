"""The description of the package on PyPI; everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

# PyPI shows README.md without the files around it, and there is no address to link to.
text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
text = re.sub(r"!\[([^]]*)\]\((?!https?:)[^)]*\)", r"*\1*", text)
text = re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)
text += "\nThis is the README of the repository. The source distribution has the folder `docs/`.\n"

setup(long_description=text, long_description_content_type="text/markdown")
