"""Copy the results of a comparison to a folder that is small enough for the repository.

    python scripts/publish_results.py runs/clock_noise docs/results/clock_noise
    python scripts/publish_results.py --redraw docs/results/*/
    python scripts/publish_results.py --recompute docs/results/clock_evidence

summary.json    means, intervals and the value of each seed, machine and commit; five digits
sweeps.csv      the numbers of the figure, if the grid has an axis of numbers
figure.svg      the first metric: over that axis, or else by objective and decoding rule
answers.tar.xz  the config and the answer of each run to each test row, without prompts and images

The config is scripts/experiments/NAME.yaml, where NAME is the name of the folder.
`mm-numeric report docs/results/NAME` writes the page, without what only runs have, such as learning
curves. ``--redraw`` draws the figures again from summary.json. ``--recompute`` computes the results
again from the archive, and fails unless each mean, interval, p-value and fact is the published one.
It uses the library of the commit that scored the answers, ``scored_at`` in summary.json, in a
worktree of git: parsers, metrics and intervals may have changed since. With ``--here``, it uses the
present library and compares no facts: it reads no config, so that neither removed losses nor
removed settings are needed.
"""

import argparse
import io
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # from a checkout, whether installed or not

from svg import image, placed, words

from mm_numeric.comparison.hypotheses import Hypothesis
from mm_numeric.comparison.selection import SELECTION
from mm_numeric.comparison.summary import (
    SUMMARY,
    read_run_scores,
    summary_results,
)
from mm_numeric.comparison.tables import Runs
from mm_numeric.config.decoding import GREEDY
from mm_numeric.evaluation.report.charts import SeriesStyle
from mm_numeric.evaluation.report.comparison_page import SWEEPS
from mm_numeric.evaluation.report.decoding_section import decoding_charts
from mm_numeric.evaluation.report.results import Comparison, read_comparison
from mm_numeric.evaluation.report.summary_file import read_summary
from mm_numeric.evaluation.report.sweeps import grid_sweeps, sweep_chart, sweeps_data
from mm_numeric.io.files import read_json, read_rows, write_json, write_text
from mm_numeric.runs.folder import CONFIG, FINISHED, STATED, source_commit

ROOT = Path(__file__).parents[1]
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
    again.add_argument("--recompute", action="store_true", help="check summary.json with answers")
    parser.add_argument("--here", action="store_true", help="recompute with this library")
    args = parser.parse_args()
    if args.here and not args.recompute:
        parser.error("--here belongs to --recompute")
    if args.redraw or args.recompute:
        for folder in args.folders:
            draw(folder) if args.redraw else recompute(folder, here=args.here)
        return
    if len(args.folders) != 2:
        parser.error("give the folder of a comparison, and the folder to write")
    publish(*args.folders)


def publish(comparison: Path, target: Path) -> None:
    """Write the files of ``target`` from the output folder of a comparison."""
    read_summary(comparison)  # raises ValueError if it is not valid
    summary = _rounded(read_json(comparison / SUMMARY))
    summary["scored_at"] = source_commit()
    require_pushed_commits(comparison, summary["facts"]["commit"].split("; "))
    # The folder of the runs differs between machines.
    summary["facts"]["command"] = f"mm-numeric compare scripts/experiments/{target.name}.yaml"
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(summary, ensure_ascii=False, separators=(",", ":"))
    write_text(target / SUMMARY, text + "\n")
    pack_answers(comparison, target / ANSWERS)
    draw(target)


def require_pushed_commits(comparison: Path, commits: Sequence[str]) -> None:
    """Exit unless others can repeat the runs: their commits are pushed, without changed files.

    In a repository without a remote, a local branch has to contain each commit.
    """
    git = ["git", "-C", str(ROOT)]
    remotes = subprocess.run([*git, "remote"], capture_output=True, check=False).stdout
    branches = "refs/remotes" if remotes else "refs/heads"
    for commit in commits:
        command = [*git, "for-each-ref", f"--contains={commit}", branches]
        if not subprocess.run(command, capture_output=True, check=False).stdout:
            sys.exit(
                f"{comparison}: others cannot repeat its runs of commit {commit}, which is in no "
                f"branch of {branches} (-dirty: files were changed); push all changes, and run the "
                "comparison again."
            )


ANSWERS = "answers.tar.xz"
_PACKED = (CONFIG, STATED, f"seed*/*/{FINISHED}", f"seed*/*/{SELECTION}/[!p]*.json")
_ROWS = ("seed*/**/predictions*.jsonl", "ensembles/**/predictions*.jsonl")
_LEFT_OUT = ("image", "parsed", "greedy")  # prompts decide the constant answer per question


def pack_answers(comparison: Path, target: Path) -> None:
    """Pack the files of a comparison that ``write_summary`` reads."""
    numbers: dict[str, str] = {}
    rows = [path for name in _ROWS for path in comparison.glob(name)]
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for path in sorted(path for name in _PACKED for path in comparison.glob(name)):
            content = path.read_bytes()
            if path.name == CONFIG:  # the folder of the modules differs between machines
                content = re.sub(rb"(?m)^plugins: /.*$", b"plugins: scripts/experiments", content)
            _add(archive, path.relative_to(comparison), content)
        for path in sorted(rows, key=lambda path: (path.name, path)):
            lines = [json.dumps(_short(row, numbers)) + "\n" for _, row in read_rows(path)]
            _add(archive, path.relative_to(comparison), "".join(lines).encode())


def _short(row: dict[str, Any], numbers: dict[str, str]) -> dict[str, Any]:
    """Return a row without fields that do not affect its score; an image becomes a group."""
    kept = {key: value for key, value in row.items() if key not in _LEFT_OUT}
    if row.get("decode"):
        names = ("rule", "confidence", "covered", "drawn")
        kept["decode"] = {key: row["decode"].get(key) for key in names}
    if "group" not in row and row.get("image"):
        kept["group"] = numbers.setdefault(row["image"], f"image {len(numbers):06}")
    return kept


def _add(archive: tarfile.TarFile, name: Path, content: bytes) -> None:
    member = tarfile.TarInfo(name.as_posix())  # without the time and the user
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def recompute(target: Path, *, here: bool) -> None:
    """Compute the published results again from the answers; exit with an error if one differs.

    ``here`` uses this library, instead of the library of the commit that scored them.
    """
    if not (target / ANSWERS).is_file():
        sys.exit(f"{target}: was published without {ANSWERS}, so that it cannot be recomputed.")
    summary = read_json(target / SUMMARY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(target / ANSWERS) as archive:
            archive.extractall(folder, filter="data")
        if here:
            found, published = (
                _values({name: own[name] for name in _FROM_ANSWERS})
                for own in (rescored(summary, folder), summary)
            )
            found = {key: found.get(key) for key in published}  # without metrics added since
        else:
            _name_present_commits(folder)
            _summarize_at(summary["scored_at"], target, folder)
            found, published = _values(read_json(folder / SUMMARY)), _values(summary)
    keys = list(dict.fromkeys([*published, *found]))
    wrong = [key for key in keys if not _is_same(found.get(key), published.get(key))]
    if wrong:
        sys.exit(
            f"{target}: {len(wrong):,} of {len(keys):,} values differ, first {wrong[0]}: "
            f"{published.get(wrong[0])} is published, and {found.get(wrong[0])} recomputed."
        )
    p_values = sum(key.endswith((".p", ".p_holm")) for key in published)
    facts = sum(key.startswith("facts.") for key in published)
    print(f"{target}: {len(keys):,} values are equal ({p_values:,} p-values, {facts} facts).")


_LAYOUT = ("baseline", "control", "objectives", "references", "seeds", "metric")
_REWORDED = {"1392b90b1284": "979500f76c0e"}
"""Commits of runs whose message was reworded afterwards: recorded hash -> current hash."""


def _name_present_commits(folder: Path) -> None:
    for path in folder.glob(f"seed*/*/{FINISHED}"):
        run = read_json(path)
        write_json(path, run | {"commit": _REWORDED.get(run["commit"], run["commit"])})


def scored_runs(summary: Mapping[str, Any], folder: Path) -> tuple[Runs, Runs]:
    """Score unpacked answers; return the scores of the runs, and those of the ensembles.

    The summary lists the runs and decoding rules. Each answer has its target and names its task.
    """
    folders = {own["objective"]: own["folder"] for own in summary["runs"]}
    starts = [own["warm_start"] for own in summary["runs"] if own["warm_start"]]
    folders |= {own.partition("/")[2]: own for own in starts}
    runs = {
        (name, rule): [
            read_run_scores(folder / f"seed{seed}" / own.partition("/")[2], rule=rule)
            for seed in summary["seeds"]
        ]
        for name, own in folders.items()
        for rule in summary["decoding"].get(name, [GREEDY])
    }
    seeds = "_".join(map(str, summary["seeds"]))
    ensembles = {
        (name, rule): [read_run_scores(folder / "ensembles" / name / seeds, rule=rule)]
        for name, rules in summary["ensembles"].items()
        for rule in rules
    }
    return runs, ensembles


def rescored(summary: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Compute the results of a summary.json again from its unpacked answers."""
    runs, ensembles = scored_runs(summary, folder)
    stated = [
        Hypothesis(own["family"], own["metric"], tuple(own["better"]), tuple(own["other"]))
        for own in summary["hypotheses"]
    ]
    layout = {name: summary.get(name) for name in _LAYOUT}
    return summary_results(layout, runs, ensembles, stated, folder)


_WRITE_SUMMARY = """
import sys
from pathlib import Path
from mm_numeric.comparison.summary import write_summary
from mm_numeric.config.reader import read_config

folder = Path(sys.argv[1])
write_summary(read_config(folder / "config.yaml", [f"compare.output_dir={folder}"]), folder)
"""


def _summarize_at(commit: str, target: Path, folder: Path) -> None:
    """Write summary.json of unpacked answers with the library of another commit, in a worktree."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        added = subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=False)
        if added.returncode:
            sys.exit(
                f"{target}: was scored at {commit}, which git does not have here; get the history "
                "(git fetch --unshallow), or recompute with this library (--here)."
            )
        try:
            # The configs of experiments may name modules next to them.
            own = {"PYTHONPATH": f"{tree}{os.pathsep}{tree}/scripts/experiments"}
            command = [sys.executable, "-c", _WRITE_SUMMARY, str(folder)]
            done = subprocess.run(command, cwd=tree, env=os.environ | own, check=False)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    if done.returncode:
        sys.exit(f"{target}: could not be summarized at {commit}; the error is above.")


def _is_same(found: Any, published: Any) -> bool:
    """Return True if two values are equal, or numbers that are equal to four digits."""
    if isinstance(found, float | int) and isinstance(published, float | int):
        return math.isclose(found, published, rel_tol=1e-4, abs_tol=1e-9)
    return bool(found == published)


_FROM_ANSWERS = (
    "table", "warm_start", "other_warm_starts", "decoding", "ensembles", "hypotheses",
    "calibration",
)  # fmt: skip
_NAMES = ("title", "scored_at", "facts.command")
"""Parts of summary.json that depend on the name of the published folder, or are set afterwards."""


def _values(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a summary.json by their dotted names."""
    found: dict[str, Any] = {}

    def collect(value: Any, name: str) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, own in items:
            where = f"{name}.{key}".lstrip(".")
            if isinstance(own, dict | list | tuple):
                collect(own, where)
            elif where not in _NAMES:
                found[where] = own

    collect(summary, "")
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
