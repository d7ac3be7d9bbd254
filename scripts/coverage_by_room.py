"""Print the test coverage of each package, from coverage's JSON report."""

import json
import sys
from collections import Counter
from pathlib import Path


def main(report: str) -> None:
    """Print a line for each package and one for all of them."""
    statements: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, file in json.loads(Path(report).read_text())["files"].items():
        room = "/".join(Path(name).parts[:2][: 2 if len(Path(name).parts) > 2 else 1])
        for group in (room, "all"):
            statements[group] += file["summary"]["num_statements"]
            covered[group] += file["summary"]["covered_lines"]
    print(f"{'room':30}{'statements':>12}{'covered':>9}")
    for room in sorted(statements, key=lambda room: (room == "all", room)):
        share = 100 * covered[room] / max(1, statements[room])
        print(f"{room:30}{statements[room]:>12}{share:>8.1f}%")


if __name__ == "__main__":
    main(sys.argv[1])
