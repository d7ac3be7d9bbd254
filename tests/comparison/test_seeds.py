"""compare.vary: what each seed draws, and that one folder never mixes two answers to it."""

import itertools

import pytest
import torch
from planned import seed_configs
from synthetic_rows import rows_for
from tiny_models import examples_of, small_config, tiny_checkpoint, tiny_family

from mm_numeric.comparison.seeds import describe_seeds, with_resolved_vary
from mm_numeric.config.data import listed
from mm_numeric.data.collator import make_collator
from mm_numeric.runs.folder import claim, write_config
from mm_numeric.training.setup import make_trainer, training_arguments

SEEDS = "compare.seeds=[0, 3]"


def synthetic(run):
    return [source.synthetic for source in listed(run.data.train) if source.synthetic]


def drawn(config, seed):
    """Return (seed, data seed, noise seed, seeds of the training sources) of the runs of a seed."""
    found = {
        (
            run.trainer["seed"],
            run.trainer.get("data_seed"),
            *{made.noise_seed for made in synthetic(run)},
            tuple(made.seed for made in synthetic(run)),
        )
        for run in seed_configs(config, seed)
    }
    assert {run.data.test.synthetic.seed for run in seed_configs(config, seed)} == {2}
    (own,) = found  # the same for the warm start and all rows
    return own


@pytest.mark.parametrize(
    ("vary", "of_0", "of_3"),
    [
        ("null", (0, None, 0, (1,)), (3, None, 3, (3001,))),
        ("[weights, order]", (0, None, 0, (1,)), (3, None, 0, (1,))),
        ("[weights]", (0, 7, 0, (1,)), (3, 7, 0, (1,))),
        ("[order]", (7, 0, 0, (1,)), (7, 3, 0, (1,))),
        ("[noise]", (7, None, 0, (1,)), (7, None, 3, (1,))),
        ("[rows]", (7, None, 0, (1,)), (7, None, 0, (3001,))),
    ],
)
def test_a_seed_draws_what_vary_lists_and_nothing_else(tmp_path, vary, of_0, of_3):
    config = small_config(tmp_path, SEEDS, f"compare.vary={vary}", "trainer.seed=7")
    assert (drawn(config, 0), drawn(config, 3)) == (of_0, of_3)


@pytest.mark.slow
def test_weights_and_order_are_drawn_apart(tmp_path):
    def first_batches(seed, data_seed):
        config = small_config(
            tmp_path,
            f"trainer.seed={seed}",
            f"trainer.data_seed={data_seed}",
            "trainer.use_cpu=true",
        )
        family, args = tiny_family(), training_arguments(config)
        trainer = make_trainer(
            config, args, examples_of(config), make_collator(config, family), tiny_checkpoint()
        )
        batches = itertools.islice(trainer.get_train_dataloader(), 3)
        return torch.cat([batch["labels"].flatten() for batch in batches])

    one = first_batches(1, 5)
    assert torch.equal(one, first_batches(2, 5))
    assert not torch.equal(one, first_batches(1, 6))


def test_each_synthetic_source_is_drawn_and_a_file_is_not(tmp_path):
    sources = [rows_for("clock", 9, seed) for seed in (1, 5)] + [{"path": "rows.jsonl"}]
    config = small_config(tmp_path, SEEDS, f"data.train={sources}")
    assert drawn(config, 3)[3] == (3001, 3005)
    assert describe_seeds(config, has_noise=True) == (
        "each seed draws its own random initialisation, data order, label noise and synthetic "
        "training rows; the training rows from files and test rows are the same for all seeds"
    )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), "each seed draws its own random initialisation, data order, label noise and training "
         "rows; the test rows are the same for all seeds"),
        (("compare.vary=[order]",), "each seed draws its own data order; the random initialisation,"
         " label noise, training rows and test rows are the same for all seeds"),
        (("data.train={path: rows.jsonl}",),
         "each seed draws its own random initialisation and data order; the training rows from "
         "files and test rows are the same for all seeds"),
        (("data.train.synthetic.noise_minutes=0", "compare.vary=[noise]"),
         "the random initialisation, data order, training rows and test rows are the same for all "
         "seeds"),
    ],
)  # fmt: skip
def test_a_sentence_states_what_differs_between_seeds(tmp_path, overrides, sentence):
    config = small_config(tmp_path, *overrides)
    has_noise = any(made.has_noise for made in synthetic(config))
    assert describe_seeds(config, has_noise=has_noise) == sentence


def test_seeds_of_a_checkpoint_do_not_differ_in_its_weights(tmp_path):
    quiet = "data.train.synthetic.noise_minutes=0"
    config = small_config(tmp_path, "model.name=my/checkpoint", quiet)
    assert describe_seeds(config, has_noise=True) == (
        "each seed draws its own randomness of training, such as dropout, data order, label noise "
        "and training rows; the test rows are the same for all seeds"
    )


def test_answers_to_the_rows_of_one_seed_are_not_those_of_another(tmp_path):
    answers = rows_for("clock", 9, 1) | {"answers": "training_answers.jsonl"}
    config = small_config(tmp_path, SEEDS, f"data.train={answers}")
    seed_configs(config, 0)
    with pytest.raises(ValueError, match=r"training_answers\.jsonl has answers to the rows of one"):
        seed_configs(config, 3)


def test_no_seed_trains_on_the_test_rows(tmp_path):
    config = small_config(tmp_path, SEEDS, "data.test.synthetic.seed=3001")
    with pytest.raises(ValueError, match=r"rows of seed 3 are generated with the seed 3001, as"):
        seed_configs(config, 3)


def test_a_folder_is_continued_with_what_its_runs_vary(tmp_path):
    folder = tmp_path / "compare"
    config = small_config(tmp_path)
    assert with_resolved_vary(config, folder).compare.vary == ("weights", "order", "noise", "rows")
    (folder / "seed0" / "ce").mkdir(parents=True)
    write_config(folder, config)
    assert with_resolved_vary(config, folder).compare.vary == ("weights", "order", "noise", "rows")
    write_config(folder / "seed0" / "ce", config)
    resolved = small_config(tmp_path, "compare.vary=[weights, order]")
    assert drawn(resolved, 3) == (3, None, 0, (1,))
    write_config(folder, resolved)
    assert with_resolved_vary(config, folder).compare.vary == ("weights", "order")
    listed_anew = small_config(tmp_path, "compare.vary=[order, weights]")
    assert with_resolved_vary(listed_anew, folder).compare.vary == ("order", "weights")
    other = small_config(tmp_path, "compare.vary=[weights, order, noise]")
    with pytest.raises(ValueError, match=r"compare: its seeds vary weights, order, and compare\."):
        with_resolved_vary(other, folder)


def test_a_run_of_an_old_folder_is_not_taken_for_one_with_rows_of_its_own(tmp_path):
    """The check of each run is the second lock: claim compares the drawn settings, too."""
    old, new = (
        seed_configs(small_config(tmp_path, f"compare.vary={vary}"), 1)[1]
        for vary in ("[weights, order]", "null")
    )
    claim(old.output_dir, old)
    (old.output_dir / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"another run: data\.train\.synthetic\.noise_seed is 0"):
        claim(new.output_dir, new)


def test_ce_trained_for_longer_is_a_control_from_the_same_warm_start(tmp_path):
    longer = "{name: ce_longer, preset: ce, with: {trainer.max_steps: 1000}}"
    warm, *runs = seed_configs(
        small_config(tmp_path, f"compare.objectives=[ce, {longer}, ntil]"), 1
    )
    assert {run.model.name for run in runs} == {str(warm.output_dir / "model")}
    steps = {run.objective.name: run.trainer["max_steps"] for run in runs}
    assert steps == {"ce": 6, "ce_times_1.3": 6, "ce_longer": 1000, "ntil": 6}


def test_vary_lists_known_values(tmp_path):
    with pytest.raises(ValueError, match=r"vary lists one or more of weights, order, noise, rows"):
        small_config(tmp_path, "compare.vary=[labels]")
