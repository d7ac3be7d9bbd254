"""docs/trust.md: each of its sentences has a test that tries to make it false."""

import re
import socket
import zipfile
from pathlib import Path

import pytest
from documents import PAGES
from finished_runs import copy_and_enter
from import_graph import ROOT

from mm_numeric.cli import main as cli
from mm_numeric.config.reader import read_config
from mm_numeric.io.files import read_json
from mm_numeric.runs.folder import machine_name

ADVICE = "advice, of which no test can be false"

TESTS = {
    # What is executed
    "a config that you name on the command line: The modules that it names, such as `task: "
    "my_tasks:MyTask`, a scorer, family, baseline, objective or risk, and the modules next to them "
    "that these import.":
        "config/test_plugins.py::test_only_the_named_modules_and_what_they_import_are_found",
    "With `model.trust_remote_code: true` also the Python code of the checkpoint.":
        "runs/test_trust.py::test_a_checkpoint_with_code_that_nobody_permitted_is_one_sentence",
    "a run folder, checkpoint or comparison that a command reads: None.":
        "runs/test_trust.py::test_a_stored_run_executes_no_code_of_its_checkpoint",
    "If it names modules, or code of its checkpoint, `predict`, `export` and `push` end with an "
    "error message that says which, until you add `--trust-remote-code`.":
        "runs/test_trust.py::test_a_stored_run_imports_nothing",
    "Until then `report` leaves out the chapters of the task, with a warning.":
        "runs/test_trust.py::test_a_report_imports_the_task_of_a_stored_comparison_only_with_the_flag",
    "rows, predictions, archives, images, answers of a server: None.":
        "runs/test_trust.py::test_a_predictions_file_imports_nothing",
    "A task or scorer that is an import path needs `score --task my_tasks:MyTask` or `--scorer "
    "my_tasks:SCORER`.":
        "runs/test_trust.py::test_the_command_line_may_name_the_module_of_a_task",
    "the working directory: None but the named modules.":
        "runs/test_trust.py::test_no_command_finds_modules_in_the_run_folder_that_it_is_called_in",
    "The command `python -m mm_numeric` is an exception, because Python itself looks for "
    "`mm_numeric` there first; `mm-numeric` and `python -P -m mm_numeric` do not.":
        "runs/test_trust.py::test_an_optional_import_of_a_library_is_not_found_in_a_run_folder",
    "A named module is found next to the config, in the working directory and in `PYTHONPATH`.":
        "config/test_plugins.py::test_another_folder_may_be_named",
    "A run stores the path of the config's folder as `plugins`; later commands look for modules "
    "there only with `--trust-remote-code`.":
        "config/test_plugins.py::test_a_module_next_to_the_config_is_found_by_every_command",
    "No library finds an optional import, such as `wandb`, in the folder of a config or in the "
    "working directory.":
        "config/test_plugins.py::test_only_the_named_modules_and_what_they_import_are_found",
    "Weights are read from safetensors.":
        "runs/test_tensor_files.py::test_every_load_inside_the_context_accepts_only_tensors",
    "A pickle file of a checkpoint, also of DeepSpeed or FSDP, is loaded only if it holds tensors "
    "and plain values; otherwise `--resume` ends with an error message that names the file and the "
    "function that it would call.":
        "runs/test_tensor_files.py::test_a_file_that_would_execute_a_command_is_named",
    "PEFT settings that import modules are an error.":
        "runs/test_trust.py::test_adapters_import_nothing",
    "The chat template of a checkpoint is rendered in the sandbox of Jinja, in a process of its "
    "own.": "families/test_chat_template.py::test_a_hostile_template_is_one_line",
    "A prompt that takes more than 10 s, has more than 4 Mi characters or, on Linux, needs more "
    "than 512 MiB is an error.":
        "families/test_chat_template.py::test_a_hostile_template_is_one_line",
    # What is read
    "Files of somebody else are read with limits: YAML without aliases that expand and without "
    "deep nesting, archives up to `--max-unpacked` (256 MiB; the lines of a `.jsonl.gz`, which are "
    "read one by one, up to 200 times its size if that is more), images up to "
    "`data.largest_image` (128 million pixels, and a third of this for WebP), models up to 64 "
    "times the weights in the files of their checkpoint, JSON lines up to the same limit as "
    "archives.":
        "test_bombs.py::test_yaml "
        "io/test_archives.py::test_a_zip_bomb_is_rejected_by_its_sizes_without_unpacking "
        "test_bombs.py::test_a_packed_json_lines_file_of_blank_lines "
        "evaluation/check_data/test_check.py::"
        "test_an_image_that_is_too_large_to_be_decoded_is_one_fault "
        "models/test_checkpoint_values.py::"
        "test_a_model_of_other_sizes_is_not_made_before_it_is_rejected "
        "test_bombs.py::test_a_line_of_a_json_lines_file_is_limited",
    "A file that exceeds a limit ends in one error message with its name.":
        "test_damaged_files.py::test_a_damaged_file_is_named",
    "An impossible value in the JSON files of a checkpoint ends in one error message with file "
    "and key.":
        "models/test_checkpoint_values.py::test_an_impossible_value_is_one_sentence",
    "A named pipe or device is an error.":
        "test_bombs.py::test_a_named_pipe_is_not_waited_for",
    "Images are JPEG, PNG, WebP, BMP, TIFF, GIF or PPM files, whatever their names end with, and "
    "PostScript is not executed.": "data/test_images.py::test_no_postscript_is_executed",
    "Paths in rows may lead out of the folder of the rows.": ADVICE,
    "Replies of servers are limited, too: in size to 4 MiB plus 1 KiB for each token that "
    "was asked for; in time to `--timeout`.":
        "inference/test_chat_client.py::test_a_body_without_end_is_read_up_to_a_limit "
        "inference/test_chat_client.py::test_a_server_that_hangs_or_is_slow_ends_after_two_timeouts",
    "A reply that exceeds a limit, or has an impossible value, ends in one error message with "
    "the URL.":
        "inference/test_chat_client.py::test_an_impossible_value_of_a_reply_is_one_sentence",
    # What is written
    "Commands write into the folders that you or your config name, and next to the files that you "
    "name; downloads are written into the cache of the Hugging Face hub.":
        "test_trust_page.py::test_commands_write_to_the_given_paths_and_connect_to_nothing",
    "A lock is a file `.NAME.lock` next to the file that it locks, and the content of a "
    "lock file is never changed.":
        "io/test_atomic_files.py::test_a_lock_keeps_the_content_of_its_file",
    "An output or lock that is a link is an error, because its target could be anywhere.":
        "io/test_atomic_files.py::test_an_output_that_is_a_link_is_rejected "
        "io/test_atomic_files.py::test_a_lock_that_is_a_link_is_not_followed",
    "`prepare` never writes outside the folder of `--out`, and the frames of videos (`--videos`) "
    "only into `--frames`.":
        "test_trust_page.py::test_prepare_writes_in_the_folder_of_out_alone "
        "importers/test_video_frames.py::test_rows_of_videos_have_the_seconds_of_their_frames",
    "Texts of rows, models, folders and file names are escaped where they are shown.":
        "test_hostile_text.py::test_no_command_writes_escape_sequences_to_the_terminal",
    "They cannot add escape sequences to the terminal, tags to an HTML page, headings or links to "
    "Markdown, commands to LaTeX tables, or formulas to CSV files.":
        "test_hostile_text.py::test_html_has_no_element_of_a_text "
        "test_hostile_text.py::test_markdown_has_no_heading_list_link_or_tag_of_a_text "
        "test_hostile_text.py::test_no_cell_is_a_formula_and_no_text_is_a_latex_command",
    "The logs, warnings and errors of libraries, which may contain names of tensors, are escaped "
    "for the terminal, too.":
        "test_hostile_text.py::test_what_libraries_log_warn_of_and_raise_is_escaped "
        "test_hostile_text.py::test_names_in_a_checkpoint_do_not_act_in_a_terminal",
    "Their progress bars are not.": ADVICE,
    # What is sent where
    "`model.name`, `data.*.dataset` that is no local folder: Its name and revision, to the Hugging "
    "Face hub.":
        "test_trust_page.py::test_commands_write_to_the_given_paths_and_connect_to_nothing",
    "`HF_HUB_OFFLINE=1` forbids it.": "test_trust_page.py::test_offline_no_model_is_asked_for",
    "The client of the hub adds your token and the versions of packages, and uses the proxies of "
    "the environment.": ADVICE,
    "`push RUN REPO`: The exported model and its card, to the Hugging Face hub.":
        "models/test_export.py::test_a_run_is_pushed_to_the_hub",
    "`predict --endpoint URL`: Questions and images, and `MM_NUMERIC_API_KEY`, to that server "
    "only.":
        "inference/test_endpoint.py::test_the_api_key_is_sent_and_nowhere_written",
    "A redirect is an error.":
        "evaluation/answers/test_judge.py::test_every_failure_is_one_sentence",
    "`score --extract-with URL`: Questions and answers, and `OPENAI_API_KEY`, to that server only.":
        "evaluation/answers/test_judge.py::test_a_judge_is_asked_as_the_published_script_asks "
        "inference/test_endpoint.py::test_the_key_of_openai_is_not_sent_to_other_servers",
    "`--proxy env` with one of the two settings above: The same, through the proxy of "
    "`http_proxy` or `https_proxy`, which can read all that is sent to an `http://` URL.":
        "inference/test_chat_client.py::test_a_proxy_that_does_not_connect_is_named",
    "Without it, proxies of the environment get nothing.":
        "inference/test_chat_client.py::"
        "test_a_proxy_of_the_environment_gets_nothing_unless_it_is_asked_for",
    "`demo`, `report --watch`: Pages, to the browsers of this machine.":
        "evaluation/report/test_demo.py::test_the_page_and_an_answer",
    "Other host names and pages of websites get an error.":
        "evaluation/report/test_demo.py::test_other_hosts_and_pages_of_websites_get_nothing",
    "A request has 30 s, and there are at most 32 connections.":
        "io/test_local_server.py::test_a_request_that_does_not_arrive_is_ended "
        "io/test_local_server.py::test_there_are_not_more_connections_than_permitted",
    "`trainer.report_to`, `trainer.push_to_hub`: What those services of transformers send.": ADVICE,
    "The default is nothing.": "test_trust_page.py::test_nothing_is_reported_by_default",
    "`--engine ray`, several ranks: Configs and rows, within your cluster.":
        "distributed/test_ray.py::test_a_wrong_address_is_one_sentence",
    "Ray and torch.distributed do not authenticate, so keep their ports private.": ADVICE,
    "Nothing else is sent: no telemetry, and pages and reports load nothing.":
        "test_trust_page.py::test_commands_write_to_the_given_paths_and_connect_to_nothing",
    "run.json holds the machine's system, CPU and GPUs, package versions and the commit, digests "
    "of the rows, and the first training row's prompt.":
        "test_trust_page.py::test_what_a_run_and_its_card_say_of_the_machine",
    "A model card holds the versions and that prompt, not the machine.":
        "test_trust_page.py::test_what_a_run_and_its_card_say_of_the_machine",
    "To report a vulnerability, see SECURITY.md in the repository.": ADVICE,
}  # fmt: skip
"""Each sentence of the page, and the tests that try to make it false. The first sentence in a row
of a table has the first cell before it."""


def sentences():
    """Yield the sentences of the page."""
    text = re.sub(
        r"^#.*|^\| (source|setting) \|.*|^\|---.*", "", PAGES["docs/trust.md"], flags=re.M
    )
    for paragraph in re.split(r"\n\n|\n(?=\|)", text):
        line = " ".join(paragraph.split())
        if line.startswith("|"):
            line = ": ".join(cell.strip() for cell in line.strip("|").split(" | "))
        yield from filter(None, re.split(r"(?<=\.) ", line))


def test_each_sentence_has_a_test():
    assert [*sentences()] == list(TESTS)


def test_each_test_exists():
    tests = {test for own in TESTS.values() if own != ADVICE for test in own.split()}
    for file, _, name in (test.partition("::") for test in tests):
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{file}::{name}"


@pytest.fixture
def connections(monkeypatch):
    """A list of the addresses that this process looks up or connects to."""
    found = []

    def reject(*words, **_):
        found.append(words[-1])
        raise OSError("no network")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, reject)
    monkeypatch.setattr(socket, "getaddrinfo", reject)
    return found


@pytest.fixture
def folder(finished_runs, tmp_path, monkeypatch):
    """Enter a folder with finished runs."""
    return copy_and_enter(finished_runs, tmp_path / "files", monkeypatch)


COMMANDS = [
    ["check-data", "run.yaml"],
    ["train", "run.yaml", "trainer.output_dir=new", "trainer.max_steps=1"],
    ["predict", "--model", "run", "--out", "new.jsonl"],
    ["score", "new.jsonl"],
    ["report", "run"],
    ["report", "comparison"],
    ["export", "run", "--out", "exported"],
]


@pytest.mark.slow
def test_commands_write_to_the_given_paths_and_connect_to_nothing(
    folder, connections, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    before = {*tmp_path.rglob("*")}
    for words in COMMANDS:
        assert cli.main(words) == 0, words
    new = {str(path.relative_to(folder)) for path in {*tmp_path.rglob("*")} - before}
    told = r"(new|exported)([./].*)?|\.(new|exported).*\.lock|(run|comparison)/report\..*"
    others = {name for name in new if not re.fullmatch(told, name)}
    assert others <= {"run.check-data.html"}
    assert connections == []
    pages = [*Path().glob("*.html"), *Path().glob("*/report.html")]
    assert len(pages) == 5  # the training of each run has written its report
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert (
            re.findall(r"(?:\bsrc|<link[^>]*href)=\W*(?!data:)\w+|url\((?!#)|@import", text) == []
        )


def test_offline_no_model_is_asked_for(folder, connections, capsys):
    assert cli.main(["train", "run.yaml", "model.name=somebody/something"]) == 2
    assert "somebody/something" in capsys.readouterr().err
    assert connections == []


def test_nothing_is_reported_by_default():
    trainer = read_config("clock_tiny").trainer
    assert trainer["report_to"] == "none"
    assert not trainer.get("push_to_hub", False)


def test_what_a_run_and_its_card_say_of_the_machine(folder, capsys):
    run = read_json(Path("run/run.json"))
    assert run["machine"] == machine_name()
    assert socket.gethostname() not in Path("run/run.json").read_text(encoding="utf-8")
    assert {"versions", "commit", "rows_sha256", "first_prompt"} <= run.keys()
    assert cli.main(["export", "run", "--out", "exported"]) == 0
    card = Path("exported/README.md").read_text(encoding="utf-8")
    assert run["first_prompt"] in card
    assert run["versions"]["transformers"] in card
    for part in (*machine_name().split(", "), socket.gethostname()):
        assert part not in card


def test_prepare_writes_in_the_folder_of_out_alone(tmp_path, monkeypatch, capsys):
    """The name of a file in an archive leads out of every folder."""
    (tmp_path / "work/in/out").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work/in")
    with zipfile.ZipFile("gt.zip", "w") as archive:
        archive.writestr("../../gt_img_1.txt", "0,0,9,0,9,9,0,9,word\n")
    before = {*tmp_path.rglob("*")}
    words = ["--images", "images", "--out", "out/rows.jsonl"]
    assert cli.main(["prepare", "icdar2015", "gt.zip", *words]) in (0, 2)
    assert {path.parent for path in {*tmp_path.rglob("*")} - before} <= {Path("out").resolve()}
