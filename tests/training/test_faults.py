"""Runtime failures in real processes: one error message, and no checkpoint is lost."""

import json
import os
import resource
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import rank_runs
import torch
from accelerate.utils import DistributedType
from PIL import Image
from processes import Fork, Job
from run_files import log, write_config
from tiny_models import small_config
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.data import DataLoader
from train_runs import run_to_error, start
from transformers import Trainer, TrainerState

from mm_numeric.config.reader import read_config
from mm_numeric.distributed.ranks import Ranks
from mm_numeric.runs.folder import last_checkpoint
from mm_numeric.training.callbacks.non_finite import FiniteCheck
from mm_numeric.training.callbacks.preemption import IgnoreSignalsInWorker, StopOnSignal
from mm_numeric.training.errors import worker_error_message
from mm_numeric.training.run import train
from mm_numeric.training.trainer import ClippedSteps, NumericTrainer
from mm_numeric.training.unread import read

FAULTY = "objective={preset: ce, terms: [{name: 'faulty_terms:NotANumber', weight: 1.0}]}"
LONG = ("trainer.max_steps=4000", "trainer.save_steps=1000", "trainer.logging_steps=1")
LAUNCHER = ["--standalone", "--nproc-per-node=2"]


def write_rows(folder: Path, *, minute: int = 30, unreadable: tuple[int, ...] = ()) -> str:
    """Write eight clocks, of which the sixth has a minute of its own; return the override."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(8):
        Image.effect_noise((60, 60), 40 + i).convert("RGB").save(folder / f"{i}.png")
        if i in unreadable:
            (folder / f"{i}.png").write_bytes((folder / f"{i}.png").read_bytes()[:200])
        time_read = f"{i + 1}:{minute if i == 5 else 10 + i:02d}"
        lines.append(json.dumps({"id": f"r{i}", "image": f"{i}.png", "time": time_read}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    return f"data.train.path={folder / 'rows.jsonl'}"


def job(folder: Path, rows: str, *overrides: str) -> Path:
    """Write a config whose steps have two rows a rank, in the order of the file."""
    return write_config(
        folder, "data.train.synthetic=null", rows,
        "trainer.per_device_train_batch_size=2", "trainer.train_sampling_strategy=sequential",
        "trainer.max_steps=4", "trainer.save_steps=1", "trainer.logging_steps=1", *overrides,
    )  # fmt: skip


def facts(run: Path) -> dict:
    return json.loads((run / "run.json").read_text())


@pytest.mark.slow
def test_a_loss_that_is_not_finite_names_step_rows_and_part(tmp_path):
    config = job(tmp_path, write_rows(tmp_path, minute=59), FAULTY)
    sentence = run_to_error(start(config))
    assert (
        "step 3: faulty_terms:NotANumber is not finite, in a batch with the rows r4, r5" in sentence
    )
    assert "checkpoint-2 is the last good one" in sentence
    run = tmp_path / "run"
    assert last_checkpoint(run).name == "checkpoint-2"
    assert not (run / "checkpoint-3").exists()
    assert [line["step"] for line in log(run)] == [1, 2]
    write_rows(tmp_path)
    assert start(config, "--resume").wait() == [0]
    assert facts(run)["steps"] == 4


@pytest.mark.slow
def test_all_ranks_stop_at_a_loss_that_is_not_finite_on_one(tmp_path):
    config = job(tmp_path, write_rows(tmp_path, minute=59), FAULTY)
    sentence = run_to_error(start(config, ranks=2))
    assert (
        "step 2: faulty_terms:NotANumber is not finite, in a batch with the rows r4, r5;"
        in sentence
    )
    assert last_checkpoint(tmp_path / "run").name == "checkpoint-1"


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_stops_the_run_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(rank_runs.__file__).parent))
    rows = write_rows(tmp_path, minute=59)
    faulty = FAULTY.replace("NotANumber", "NoGradient")
    file = job(tmp_path, rows, faulty, "trainer.save_strategy='no'")
    with pytest.raises(ValueError, match=r"step 3: the gradient is not finite, .* rows r4, r5; "):
        train(read_config(file))


def finite_check(folder: Path, device: str = "cpu", *, fp16: bool = False) -> FiniteCheck:
    """Return the check of a run on one rank."""
    args = SimpleNamespace(output_dir=str(folder), device=torch.device(device), world_size=1)
    return FiniteCheck(Ranks(), args, fp16=fp16)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    check = finite_check(tmp_path)
    model = torch.nn.Linear(2, 2)
    check.check(model)
    model.weight.data[1, 0] = torch.inf
    with pytest.raises(ValueError, match="a weight after it is not finite"):
        check.check(model)


def test_a_device_is_asked_at_the_tenth_step_and_the_first_broken_one_is_named(tmp_path):
    check = finite_check(tmp_path, "cuda", fp16=True)

    def step(number: int, loss: float) -> None:
        check.begin_step([[f"row{number}"]])
        check.add_loss(torch.tensor(loss))
        ce = SimpleNamespace(total=torch.tensor(loss))
        check.end_step(number, {"ce": ce}, torch.tensor(torch.inf))  # fp16: its scaler skips it

    for number in range(1, 10):
        step(number, torch.inf if number in (4, 6) else 1.0)
    with pytest.raises(
        ValueError, match="step 4: ce is not finite, in a batch with the rows row4;"
    ):
        step(10, 1.0)


def test_the_workers_of_a_list_of_rows_ignore_signals(monkeypatch):
    monkeypatch.setattr(Trainer, "get_train_dataloader", lambda _: DataLoader([1], num_workers=1))
    trainer = object.__new__(NumericTrainer)
    trainer.args, trainer.stopping = SimpleNamespace(dataloader_num_workers=1), StopOnSignal(None)
    trainer.train_dataset = [1]
    assert isinstance(trainer.get_train_dataloader().worker_init_fn, IgnoreSignalsInWorker)


def test_a_gradient_norm_of_fsdp2_is_logged_and_checked(tmp_path):
    trainer = object.__new__(NumericTrainer)
    trainer.accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP)
    trainer.state, trainer.clipped = TrainerState(), ClippedSteps(1.0)
    trainer.finite = finite_check(tmp_path)
    trainer._step_sums = {"ce": SimpleNamespace(total=torch.tensor(1.0))}
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))

    def end_step(norm: float) -> None:
        trainer.finite.begin_step([["row1"]])
        trainer.finite.add_loss(torch.tensor(1.0))
        norm = DTensor.from_local(torch.tensor(norm), mesh, [Replicate()])
        assert type(trainer._get_grad_norm(None, norm)) is torch.Tensor

    try:
        end_step(2.0)
        assert read(trainer.clipped.unread()) == {"clipping/share_of_steps": 1.0}
        with pytest.raises(ValueError, match=r"step 1: the gradient is not finite, .* row1;"):
            end_step(torch.inf)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_an_image_that_cannot_be_read_stops_all_ranks_with_its_line(tmp_path):
    config = job(tmp_path, write_rows(tmp_path, unreadable=(7,)))
    sentence = run_to_error(start(config, "trainer.dataloader_num_workers=1", ranks=2))
    assert "rows.jsonl, line 8: the image" in sentence


@pytest.mark.slow
def test_an_image_that_cannot_be_read_is_skipped_and_counted(tmp_path):
    """On two ranks; the first has no row left in its second batch, and the vision tower runs."""
    rows = write_rows(tmp_path, unreadable=(0, 4, 5))
    files = {}
    for mode in ("ddp", "zero3"):
        overrides = [] if mode == "ddp" else ["trainer.deepspeed=zero3"]
        files[mode] = job(
            tmp_path / mode, rows, "data.on_bad_image=skip", "objective=ntil_soft",
            "trainer.max_steps=3", "trainer.save_steps=3", "data.test.synthetic=null",
            rows.replace("train", "test"), *overrides,
        )  # fmt: skip
    rank_runs.run(2, [str(file) for file in files.values()])
    for mode in files:
        run = tmp_path / mode / "run"
        assert facts(run)["steps"] == 3
        assert facts(run)["rows_skipped"] == 3
        steps = [line for line in log(run) if "eval" not in line]
        assert [line["rows_skipped"] for line in steps] == [1, 3, 3]
        evaluated = (run / "evaluation" / "predictions.jsonl").read_text().splitlines()
        ids = sorted(json.loads(line)["id"] for line in evaluated)
        assert ids == ["r1", "r2", "r3", "r6", "r7"]
        step = json.loads((run / "checkpoint-3" / "step.json").read_text())
        assert step["skipped_rows"] == ["r0", "r4", "r5"]
    one, other = (log(tmp_path / mode / "run")[:3] for mode in files)
    for line, same in zip(one, other, strict=True):
        assert line["components"] == pytest.approx(same["components"], rel=1e-4)


def wait_for(found) -> None:
    """Wait until something is found, for two minutes at most."""
    deadline = time.monotonic() + 120
    while not found() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found()


def shorten(folder: Path, config: Path, end: int) -> None:
    """Write an earlier end into a config, and into its run's own record."""
    shorter = config.read_text().replace("max_steps: 4000", f"max_steps: {end}")
    config.write_text(shorter)
    (folder / "run" / "config.yaml").write_text(shorter)


@pytest.mark.slow
def test_sigterm_saves_and_ends_well_and_the_folder_is_locked_until_then(tmp_path):
    """As a scheduler does it: all processes get the signal, also workers, and more than once."""
    config = write_config(
        tmp_path, "trainer.max_steps=4000", "trainer.save_steps=1000", "trainer.logging_steps=1",
        "trainer.dataloader_num_workers=1",
    )  # fmt: skip
    run = tmp_path / "run"
    training = start(config)
    try:
        wait_for((run / "log.jsonl").is_file)
        assert "another process is using this folder" in run_to_error(start(config))
        deadline = time.monotonic() + 120
        while training.running and time.monotonic() < deadline:
            os.killpg(training.processes[0].pid, signal.SIGTERM)
            time.sleep(0.05)
    finally:
        training.kill()
    said = training.text()
    assert training.wait() == [0], said
    at = int(last_checkpoint(run).name.rpartition("-")[2])
    assert at == log(run)[-1]["step"]
    assert (
        f"mm-numeric: stopped by SIGTERM; saved {run / f'checkpoint-{at}'}: resume with the same "
        "command (train: with --resume).\n"
    ) in said
    shorten(tmp_path, config, at + 2)
    assert start(config, "--resume").wait() == [0]
    assert facts(run)["steps"] == at + 2


@pytest.mark.slow
def test_a_signal_while_the_finished_model_is_saved_does_not_lose_it(tmp_path, monkeypatch):
    """The run may have no checkpoint, and the scheduler's grace is for this."""
    save = NumericTrainer.save_model

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        save(*args, **kwargs)

    def end(number, frame):
        raise AssertionError("nobody listens")

    monkeypatch.setattr(NumericTrainer, "save_model", interrupted)
    before = signal.signal(signal.SIGTERM, end)
    try:
        train(small_config(tmp_path, "trainer.save_strategy='no'"), stoppable=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert facts(tmp_path / "run")["steps"] == 6


def work(deaf, ready) -> None:
    deaf(0)
    ready.put(True)
    time.sleep(60)


@pytest.mark.slow
def test_a_worker_that_is_left_over_can_be_ended():
    """As Python does at its end, and then waits: one that stayed deaf would hold it for ever."""
    is_listening = torch.ones((), dtype=torch.bool).share_memory_()
    processes = torch.multiprocessing.get_context("fork")
    ready = processes.Queue()
    worker = processes.Process(target=work, args=(IgnoreSignalsInWorker(None, is_listening), ready))
    worker.start()
    ready.get(timeout=60)
    os.kill(worker.pid, signal.SIGINT)
    worker.terminate()
    worker.join(0.5)
    assert worker.is_alive()
    is_listening.fill_(False)
    worker.terminate()
    worker.join(60)
    # Python handles both at once, in the order of their numbers, where a thread got the first.
    assert worker.exitcode in (-signal.SIGTERM, -signal.SIGINT)


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all(tmp_path):
    run = tmp_path / "run"
    training = start(write_config(tmp_path, *LONG, "trainer.deepspeed=zero3"), ranks=2)
    try:
        wait_for((run / "log.jsonl").is_file)
        os.kill(training.processes[1].pid, signal.SIGUSR1)
        codes = training.wait()
    finally:
        training.kill()
    assert codes == [0, 0], training.text()
    assert_all_ranks_stopped(run, training.text())


@pytest.mark.slow
def test_a_signal_to_one_rank_of_torchrun_stops_all(tmp_path):
    """The ranks end as processes of Python do; .ci/run starts them as such, too."""
    run = tmp_path / "run"
    words = ["-m", "mm_numeric", "train", str(write_config(tmp_path, *LONG))]
    launcher = Job(torchrun, [*LAUNCHER, *words], tmp_path / "output.txt")
    try:
        wait_for((run / "log.jsonl").is_file)
        pid = launcher.processes[0].pid
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(ranks[-1]), signal.SIGUSR1)
        assert launcher.wait() == [0], launcher.text()
    finally:
        launcher.kill()
    assert_all_ranks_stopped(run, launcher.text())


def torchrun(words: list[str]) -> None:
    """Do what the program of this name does; what it imports is there already."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.run import main

    subprocess_handler.Popen = Fork
    main(words)


def assert_all_ranks_stopped(run: Path, said: str) -> None:
    """Check that there is one sentence, and a checkpoint of both ranks at the last step."""
    assert said.count("mm-numeric: stopped by SIGUSR1; saved ") == 1
    assert last_checkpoint(run).name == f"checkpoint-{log(run)[-1]['step']}"
    assert len(list(last_checkpoint(run).glob("rng_state_*.pth"))) == 2


@pytest.mark.slow
def test_a_killed_rank_is_one_sentence_of_each_other_rank(tmp_path):
    run = tmp_path / "run"
    training = start(write_config(tmp_path, *LONG), ranks=2)
    try:
        wait_for((run / "log.jsonl").is_file)
        os.kill(training.processes[1].pid, signal.SIGKILL)
        codes = training.wait()
    finally:
        training.kill()
    assert codes == [2, -signal.SIGKILL]
    assert "Traceback" not in training.text()
    message = training.text().splitlines()[-1]
    assert message.startswith("mm-numeric: rank 0: another rank has ended or cannot be reached")
    assert message.endswith("(train: with --resume).")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_is_one_sentence_and_keeps_the_checkpoint_before(tmp_path, ranks):
    """No file can grow after 50,000 bytes from some moment on: weights cannot be written."""
    config = write_config(tmp_path, "trainer.max_steps=4000", "trainer.save_steps=5",
                          "trainer.save_total_limit=null")  # fmt: skip
    run = tmp_path / "run"
    training = start(config, ranks=ranks)
    try:
        wait_for(lambda: last_checkpoint(run))
        for process in training.processes:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (50_000, 50_000))
        sentence = run_to_error(training)
    finally:
        training.kill()
    kept = last_checkpoint(run)
    assert "could not be written completely" in sentence
    assert f"resume from {kept} with --resume" in sentence
    end = int(kept.name.rpartition("-")[2]) + 2
    shorten(tmp_path, config, end)
    if ranks == 1:
        assert start(config, "--resume").wait() == [0]
        assert facts(run)["steps"] == end


def test_a_message_is_found_after_the_traceback_of_a_worker():
    wrapped = (
        "Caught UnreadableImageError in DataLoader worker process 0.\nOriginal Traceback:\n"
        "OSError: broken\n\nDuring handling:\nmm_numeric.data.images.UnreadableImageError: "
        "rows.jsonl, line 1: the image cannot be read (SyntaxError: not a PNG); replace it."
    )
    wanted = "rows.jsonl, line 1: the image cannot be read (SyntaxError: not a PNG); replace it."
    assert worker_error_message(ValueError(wrapped)) == wanted
    assert worker_error_message(ValueError(wanted)) == wanted


def test_only_stop_and_skip_are_known(tmp_path):
    with pytest.raises(ValueError, match="on_bad_image is one of stop, skip, not 'ignore'"):
        small_config(tmp_path, "data.on_bad_image=ignore")
