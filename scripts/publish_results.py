"""Copy the results of a comparison to a folder that is small enough for the repository.

    python scripts/publish_results.py runs/clock_noise docs/results/clock_noise
    python scripts/publish_results.py --redraw docs/results/*/
    python scripts/publish_results.py --recompute docs/results/clock_noise

summary.json    means, intervals and the value of each seed, machine and commit; five digits
sweeps.csv      the numbers of the figure, if the grid has an axis of numbers
figure.svg      the first metric: over that axis, or else by objective and decoding rule
answers.tar.xz  the config and the answer of each run to each test row, without prompts and images

The config is scripts/experiments/NAME.yaml, where NAME is the name of the folder.
`mm-numeric report docs/results/NAME` writes the page, without what only runs have, such as learning
curves. ``--redraw`` draws the figures again from summary.json. ``--recompute`` scores the answers
again, and fails unless each mean, interval and p-value is that of summary.json.
"""

import argparse
import io
import json
import math
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from svg import image, placed, words

from mm_numeric.comparison.selection import SELECTION
from mm_numeric.comparison.summary import SUMMARY, write_summary
from mm_numeric.config.reader import read_config
from mm_numeric.evaluation.report.charts import SeriesStyle
from mm_numeric.evaluation.report.comparison_page import SWEEPS
from mm_numeric.evaluation.report.decoding_section import decoding_charts
from mm_numeric.evaluation.report.results import Comparison, read_comparison
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.report.sweeps import grid_sweeps, sweep_chart, sweeps_data
from mm_numeric.io.files import read_json, read_rows, write_text
from mm_numeric.runs.folder import CONFIG, FINISHED, STATED

FIGURE = "figure.svg"
WIDTH, PANEL = 860, 420


def main() -> None:
    """Publish one comparison, or draw figures again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--redraw", action="store_true", help="draw the figures of these folders")
    again.add_argument("--recompute", action="store_true", help="check summary.json by the answers")
    args = parser.parse_args()
    if args.redraw or args.recompute:
        for folder in args.folders:
            draw(folder) if args.redraw else recompute(folder)
        return
    if len(args.folders) != 2:
        parser.error("give the folder of a comparison, and the folder to write")
    publish(*args.folders)


def publish(comparison: Path, target: Path) -> None:
    """Write the files of ``target`` from the output folder of a comparison."""
    read_summary(comparison)  # raises ValueError if it is not valid
    summary = _rounded(read_json(comparison / SUMMARY))
    # The folder of the runs is another one on each machine.
    summary["facts"]["command"] = f"mm-numeric compare scripts/experiments/{target.name}.yaml"
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, ensure_ascii=False, separators=(",", ":"))
    write_text(target / SUMMARY, text + "\n")
    pack_answers(comparison, target / ANSWERS)
    draw(target)


ANSWERS = "answers.tar.xz"
_PACKED = (CONFIG, STATED, f"seed*/*/{FINISHED}", f"seed*/*/{SELECTION}/[!p]*.json")
_ROWS = ("seed*/**/predictions*.jsonl", "ensembles/**/predictions*.jsonl")
_LEFT_OUT = ("image", "prompt", "parsed", "greedy")


def pack_answers(comparison: Path, target: Path) -> None:
    """Pack what ``write_summary`` reads of the folder of a comparison."""
    numbers: dict[str, str] = {}
    rows = [path for name in _ROWS for path in comparison.glob(name)]
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(path for name in _PACKED for path in comparison.glob(name)):
            _add(archive, path.relative_to(comparison), path.read_bytes())
        for path in sorted(rows, key=lambda path: (path.name, path)):
            lines = [json.dumps(_short(row, numbers)) + "\n" for _, row in read_rows(path)]
            _add(archive, path.relative_to(comparison), "".join(lines).encode())


def _short(row: dict[str, Any], numbers: dict[str, str]) -> dict[str, Any]:
    """Return a row without what its score does not depend on; an image becomes a group."""
    kept = {key: value for key, value in row.items() if key not in _LEFT_OUT}
    if row.get("decode"):
        kept["decode"] = {key: row["decode"].get(key) for key in ("rule", "confidence")}
    if "group" not in row and row.get("image"):
        kept["group"] = numbers.setdefault(row["image"], f"image {len(numbers):06}")
    return kept


def _add(archive: tarfile.TarFile, name: Path, content: bytes) -> None:
    member = tarfile.TarInfo(name.as_posix())  # without the time and the user
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def recompute(target: Path) -> None:
    """Score the published answers again; exit with an error if a result is another one."""
    if not (target / ANSWERS).is_file():
        sys.exit(f"{target}: was published without {ANSWERS}, so that it cannot be recomputed.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(target / ANSWERS) as archive:
            archive.extractall(folder, filter="data")
        config = read_config(folder / CONFIG, [f"compare.output_dir={folder}"])
        write_summary(config, folder)
        found = _values(read_json(folder / SUMMARY))
    published = _values(read_json(target / SUMMARY))
    wrong = [key for key in published | found if not _is_same(found.get(key), published.get(key))]
    if wrong:
        sys.exit(f"{target}: {len(wrong):,} of {len(published):,} values differ, first {wrong[0]}.")
    p_values = sum(key.endswith((".p", ".p_holm")) for key in published)
    print(f"{target}: {len(published):,} values are equal, {p_values:,} p-values among them.")


def _is_same(found: Any, published: Any) -> bool:
    """Return True if two values are equal, or numbers that are equal to four digits."""
    if isinstance(found, float | int) and isinstance(published, float | int):
        return math.isclose(found, published, rel_tol=1e-4, abs_tol=1e-9)
    return bool(found == published)


_RECOMPUTED = (
    "table",
    "warm_start",
    "other_warm_starts",
    "decoding",
    "ensembles",
    "hypotheses",
    "calibration",
)


def _values(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the results in a summary.json by their dotted names."""
    found: dict[str, Any] = {}

    def collect(value: Any, name: str) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, own in items:
            if isinstance(own, dict | list):
                collect(own, f"{name}.{key}")
            else:
                found[f"{name}.{key}"] = own

    for name in _RECOMPUTED:
        collect(summary[name], name)
    return found


def draw(target: Path) -> None:
    """Draw the figure of published results, and write its numbers."""
    comparison = read_comparison(target)
    metric, sweeps = comparison.metrics[0], grid_sweeps(comparison)
    if sweeps:
        chart = sweep_chart(sweeps[0], metric)
        charts = [("", chart)] if chart else []
        styles = list(dict.fromkeys(line.style for line in sweeps[0].lines))
        write_text(target / SWEEPS, sweeps_data(sweeps, comparison.metrics).to_csv())
    else:
        charts, styles = decoding_charts(comparison, metric), []
    if not charts:
        raise ValueError(f"{target}: no grid axis of numbers and no decoding rules to draw.")
    parts = [
        words(20, 28, f"{metric.label}: {comparison.summary['title']}", "title"),
        words(20, 48, comparison.summary["description"].partition("? ")[2]),
        *_legend(styles, 72),
    ]
    for i, (title, chart) in enumerate(charts):
        parts.append(placed(chart.svg, 20, 86 + PANEL * i, WIDTH - 40, 400))
        if title:
            parts.append(words(90, 82 + PANEL * i, title, "title"))
    end = 86 + PANEL * len(charts)
    parts += [
        words(20, end + 16 * i, line)
        for i, line in enumerate(_origin(comparison, is_sweep=bool(sweeps)))
    ]
    write_text(target / FIGURE, image(WIDTH, end + 42, comparison.summary["description"], parts))


def _legend(styles: list[SeriesStyle], y: float) -> list[str]:
    parts, x = [], 28.0
    for style in styles:
        parts.append(f'<g transform="translate({x},{y - 4})">{style.drawn()}</g>')
        parts.append(words(x + 12, y, style.name))
        x += 34 + 7 * len(style.name)
    return parts


def _origin(comparison: Comparison, *, is_sweep: bool) -> list[str]:
    """Return two lines: what is drawn, and where it was measured."""
    summary, facts = comparison.summary, comparison.summary["facts"]
    rules = list(next(iter(summary["decoding"].values()), {}))
    dashed = f"; dashed: {' and '.join(rules[1:])} decoding" if is_sweep and rules else ""
    return [
        f"Means of {len(summary['seeds'])} seeds with their {comparison.drawn_ends}{dashed}.",
        f"{facts['machine']}, commit {facts['commit']}.",
    ]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(own) for key, own in value.items()}
    return [_rounded(own) for own in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
