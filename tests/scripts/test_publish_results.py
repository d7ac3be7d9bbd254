"""scripts/publish_results.py: the committed results, and the figures that are drawn from them."""

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from finished_comparison import GOOD, NONE, POOR, TARGETS, comparison
from processes import python

from mm_numeric.cli import main as cli
from mm_numeric.comparison.hypotheses import record_hypotheses
from mm_numeric.comparison.rows import stated_hypotheses
from mm_numeric.comparison.summary import write_summary
from mm_numeric.evaluation.scores import finite
from mm_numeric.runs.folder import write_config

pytestmark = pytest.mark.slow  # each starts the script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "publish_results.py"
PUBLISHED = sorted(path.parent for path in ROOT.glob("docs/results/*/summary.json"))
ANSWERS = sorted(path.parent for path in ROOT.glob("docs/results/*/answers.tar.xz"))


def test_the_committed_figures_are_drawn_from_the_committed_results(tmp_path):
    copies = [shutil.copytree(own, tmp_path / own.name) for own in PUBLISHED]
    drawn = [path for own in PUBLISHED for path in own.iterdir() if path.name != "summary.json"]
    drawn = [path for path in drawn if path.name != "answers.tar.xz"]
    assert {path.name for path in drawn} <= {"figure.svg", "sweeps.csv"}
    for path in drawn:
        (tmp_path / path.parent.name / path.name).unlink()
    done = python(SCRIPT, "--redraw", *copies)
    assert done.returncode == 0, done.stderr
    for path in drawn:
        again = (tmp_path / path.parent.name / path.name).read_text(encoding="utf-8")
        assert again == path.read_text(encoding="utf-8"), f"{path}: publish_results.py --redraw"


def test_the_command_in_the_header_names_the_folders_alone():
    (pattern,) = re.findall(r"--redraw (\S+)", SCRIPT.read_text(encoding="utf-8").split('"""')[1])
    assert sorted(ROOT.glob(pattern)) == PUBLISHED


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a git repository with one commit, in place of the repository of the script."""
    folder = tmp_path_factory.mktemp("repository")
    git("init", "--quiet", cwd=folder)
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    git(*own, "commit", "--allow-empty", "--message=a", cwd=folder)
    return folder


def publish(runs, target, repository):
    """Publish a comparison, as if the script were in this git repository."""
    return python(SCRIPT, runs, target, environment={"GIT_DIR": str(repository / ".git")})


@pytest.fixture(scope="module")
def runs(tmp_path_factory, repository):
    """Return the folder of a finished comparison of five seeds with a hypothesis."""
    commit = git("rev-parse", "--short=12", "HEAD", cwd=repository).stdout.strip()
    folder = tmp_path_factory.mktemp("machine") / "runs"
    stated = [{"family": "losses", "metric": "exact", "objectives": ["emd"], "against": "ce"}]
    overrides = [f"compare.hypotheses={json.dumps(stated)}", "compare.decode=[greedy, median]"]
    seeds = {"ce": [POOR, GOOD, NONE, GOOD, POOR], "emd": [GOOD, TARGETS, GOOD, POOR, GOOD]}
    config = comparison(folder, seeds, seeds=range(5), overrides=overrides)
    for path in folder.glob("seed*/*/predictions.jsonl"):
        shutil.copy(path, path.with_name("predictions.median.jsonl"))
    for path in folder.glob("seed*/*/run.json"):
        facts = json.loads(path.read_text(encoding="utf-8")) | {"commit": commit}
        path.write_text(json.dumps(facts), encoding="utf-8")
    record_hypotheses(folder, stated_hypotheses(config))
    write_config(folder, config)
    write_summary(config, folder)
    return folder


@pytest.fixture(scope="module")
def published(runs, repository, tmp_path_factory):
    """Return the folder of its published results."""
    target = tmp_path_factory.mktemp("published") / "mine"
    done = publish(runs, target, repository)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def target(published, tmp_path):
    """Return a copy of the published results, for one test."""
    return shutil.copytree(published, tmp_path / "mine")


def git(*words, cwd=ROOT):
    """Run git, and return how it ended."""
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True)


def recompute(target, *options, **changes):
    """Change the summary and recompute the results."""
    summary = json.loads((target / "summary.json").read_text(encoding="utf-8"))
    (target / "summary.json").write_text(json.dumps(summary | changes), encoding="utf-8")
    return python(SCRIPT, "--recompute", *options, target)


def test_results_are_rounded_and_name_no_folder_of_the_machine(runs, repository, tmp_path):
    copy = shutil.copytree(runs, tmp_path / "runs")
    summary = json.loads((copy / "summary.json").read_text(encoding="utf-8"))
    first = summary["baseline"], summary["metrics"][0]["name"]
    summary["table"][first[0]][first[1]]["value"] = 0.123456789
    (copy / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    config = (copy / "config.yaml").read_text(encoding="utf-8")
    config = config.replace("plugins: null", f"plugins: {tmp_path}/experiments")
    (copy / "config.yaml").write_text(config, encoding="utf-8")
    target = tmp_path / "results" / "mine"
    done = publish(copy, target, repository)
    assert done.returncode == 0, done.stderr
    with tarfile.open(target / "answers.tar.xz") as archive:
        packed = archive.extractfile("config.yaml").read().decode()
    assert packed == config.replace(f"{tmp_path}/experiments", "scripts/experiments")
    text = (target / "summary.json").read_text(encoding="utf-8")
    written = json.loads(text)
    assert written["table"][first[0]][first[1]]["value"] == 0.12346
    assert written["facts"]["command"] == "mm-numeric compare scripts/experiments/mine.yaml"
    assert str(tmp_path) not in text
    assert cli.main(["report", str(target)]) == 0
    assert (target / "report.html").is_file()


def test_the_published_answers_have_the_published_results(target):
    again = python(SCRIPT, "--recompute", "--here", target)
    assert again.returncode == 0, again.stderr
    count, p_values = map(
        int, re.findall(r"(\d+) (?:values|p-values)", again.stdout.replace(",", ""))
    )
    assert count > 200
    assert p_values > 20
    (hypothesis,) = json.loads((target / "summary.json").read_text("utf-8"))["hypotheses"]
    hypothesis["difference"]["p_holm"] *= 0.99
    changed = recompute(target, "--here", hypotheses=[hypothesis])
    assert changed.returncode == 1
    assert "1 of" in changed.stderr
    assert "hypotheses.0.difference.p_holm" in changed.stderr


def test_results_of_removed_losses_and_settings_are_recomputed(target, tmp_path):
    """No config is read: neither the one in the archive, nor that of the script's folder."""
    unpacked = tmp_path / "unpacked"
    with tarfile.open(target / "answers.tar.xz") as archive:
        archive.extractall(unpacked, filter="data")
    (unpacked / "config.yaml").write_text("task: {name: removed, drawn: true}\nobjective: gone\n")
    with tarfile.open(target / "answers.tar.xz", "w:xz") as archive:
        archive.add(unpacked, ".")
    again = python(SCRIPT, "--recompute", "--here", target)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("folder", ANSWERS, ids=lambda folder: folder.name)
def test_the_answers_of_one_seed_have_their_published_values(folder, tmp_path, monkeypatch):
    """--recompute, without the intervals, which take minutes: some runs, each by one rule."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    seed, decoding = summary["seeds"][0], summary["decoding"]
    rules = {name: list(decoding.get(name, ["greedy"])) for name in summary["table"]}
    names = list(rules)[:: max(1, len(rules) // 3)]
    chosen = {name: rules[name][i % len(rules[name])] for i, name in enumerate(names)}
    with tarfile.open(folder / "answers.tar.xz") as archive:
        archive.extractall(
            tmp_path, filter=lambda own, to: own if f"seed{seed}/" in own.name else None
        )
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from publish_results import scored_runs

    drawn = {
        "seeds": [seed],
        "runs": [
            own | {"warm_start": None} for own in summary["runs"] if own["objective"] in chosen
        ],
        "decoding": {name: [rule] for name, rule in chosen.items()},
        "ensembles": {},
    }
    runs, _ = scored_runs(drawn, tmp_path)
    cells = {
        (name, rule): summary["table"][name] if rule == "greedy" else decoding[name][rule]
        for name, rule in chosen.items()
    }
    assert cells.keys() == runs.keys()
    compared = 0
    for key, cell in cells.items():
        (scores,) = runs[key]
        known = {metric.name: (metric, rows) for metric, rows in scores.metrics_on_rows}
        for name, entry in cell.items():
            metric, rows = known[name]
            columns = scores.columns
            if rows is not None:
                columns = {column: own[rows] for column, own in columns.items()}
            published = entry["seeds"][0]
            found = finite(metric.value(columns))
            assert found == pytest.approx(published, rel=1e-4, abs=1e-9), (key, metric.name)
            compared += 1
    assert compared >= 20


def test_values_and_facts_are_recomputed_at_their_commit(target):
    """.ci/run does it for archives with ensembles and with distillation."""
    if git("cat-file", "-e", "HEAD").returncode:
        pytest.skip("needs a checkout with its history")
    facts = json.loads((target / "summary.json").read_text(encoding="utf-8"))["facts"]
    del facts["training rows"]
    done = recompute(target, scored_at="HEAD", facts=facts | {"each objective": "9 steps"})
    assert done.returncode == 1
    first = r"each objective: 9 steps is published, and 500 steps of 64 rows, .* recomputed"
    assert re.search(rf": 2 of [\d,]{{3,}} values differ, first facts.{first}", done.stderr)
    assert "/tree " not in git("worktree", "list").stdout


def test_results_of_an_unknown_commit_are_one_sentence(target):
    done = recompute(target, scored_at="no-such-commit")
    assert done.returncode == 1
    assert "was scored at no-such-commit, which git does not have here" in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_that_others_cannot_repeat_are_not_published(runs, repository, tmp_path):
    copy, ours = shutil.copytree(runs, tmp_path / "runs"), tmp_path / "repository"
    text = (copy / "summary.json").read_text(encoding="utf-8")
    pushed = json.loads(text)["facts"]["commit"]
    shutil.copytree(repository, ours)
    for commit, branches in (
        (f"{pushed}-dirty", "refs/heads"),
        ("0123456789ab", "refs/heads"),
        (pushed, "refs/remotes"),
    ):
        if branches == "refs/remotes":
            git("remote", "add", "origin", repository, cwd=ours)  # nothing is pushed to it
        (copy / "summary.json").write_text(text.replace(pushed, commit), encoding="utf-8")
        done = publish(copy, tmp_path / "results", ours)
        assert done.returncode == 1
        assert f"its runs of commit {commit}, which is in no branch of {branches}" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "results").exists()


def test_results_without_answers_cannot_be_recomputed():
    done = python(SCRIPT, "--recompute", PUBLISHED[0])
    assert done.returncode == 1
    assert "published without answers.tar.xz" in done.stderr


def test_published_results_say_how_to_make_them_again():
    assert PUBLISHED
    page = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    again = re.search(r"git worktree add \S+ ([0-9a-f]{8,})", page)
    for folder in PUBLISHED:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        facts = summary["facts"]
        assert facts["command"] == f"mm-numeric compare scripts/experiments/{folder.name}.yaml"
        config = f"scripts/experiments/{folder.name}.yaml"
        commit, found = again.group(1), (ROOT / config).is_file()
        # A config that has been removed since is in the commit that the page names.
        has_history = not git("cat-file", "-e", commit).returncode
        assert (
            found or not has_history or not git("cat-file", "-e", f"{commit}:{config}").returncode
        )
        # The page says that one seed of this experiment was trained with changed files.
        assert ("-dirty" in facts["commit"]) == (folder.name == "grounding_evidence")
        for own in facts["commit"].replace("-dirty", "").split("; ") if has_history else ():
            assert not git("merge-base", "--is-ancestor", own, "HEAD").returncode, (folder, own)
        if folder in ANSWERS:
            assert re.fullmatch(r"[0-9a-f]{12}", summary["scored_at"])
        assert "cores" in facts["machine"]
