"""Read results.json and write JSON Lines files in tests."""

import json
from pathlib import Path


def sections(folder, name=None):
    """Return all sections of a results file: the one named, or the only one in a folder."""
    (path,) = [Path(folder) / name] if name else Path(folder).glob("*results.json")
    return json.loads(path.read_text(encoding="utf-8"))["protocols"]


def section(folder, protocol=None, name=None):
    """Return the section of a protocol, or the only section, of a results file."""
    found = sections(folder, name)
    if protocol is not None:
        return found[protocol]
    (own,) = found.values()
    return own


def values(own):
    """Return the values and intervals of all metrics of a section."""
    return {
        name: {key: found[key] for key in ("value", "low", "high")}
        for name, found in own["metrics"].items()
    }


def write_lines(path, rows):
    """Write a JSON Lines file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
