"""Train a model on its own decoded answers to the training rows (config section ``distil``).

1. A teacher is trained with the rest of the config, in the subfolder ``teacher`` of the run.
2. The teacher answers the training rows with a decoding rule: ``training_answers.RULE.jsonl``.
3. The student starts from the teacher's weights. It is trained on these answers with
   cross-entropy, in the run's folder.

After an interruption, training resumes from its last checkpoint, and step 2 at the next row.
"""

from dataclasses import replace
from pathlib import Path

from mm_numeric.config.data import listed
from mm_numeric.config.reader import read_objective, with_trainer
from mm_numeric.config.schema import Config
from mm_numeric.data.examples import examples_and_errors
from mm_numeric.distributed.ranks import num_ranks
from mm_numeric.inference.decode import check_rules
from mm_numeric.inference.generate import predict
from mm_numeric.runs.folder import MODEL, TEACHER, TRAINING_ANSWERS, decoded_name


def check_distillation(config: Config) -> None:
    """Raise ValueError, before the training, if the teacher cannot answer the training rows."""
    assert config.distil is not None
    settings = replace(config.predict, decode=config.distil.decode)
    cache = Path(config.data.cache)
    examples = examples_and_errors(config.task, config.data.train, cache, training=True)
    first = [example for example, _ in [next(examples)] if example is not None]
    check_rules(settings, [settings.rule], config.task, first)
    shards = [name for name in ("deepspeed", "fsdp") if config.trainer.get(name)]
    if num_ranks() > 1 and shards:
        raise ValueError(
            f"{config.title}, distil: ranks that share a model by trainer.{shards[0]} cannot "
            "answer the training rows; train without distil, then use `mm-numeric predict "
            "--training-rows` and data.train.answers."
        )


def teacher_of(config: Config) -> Config:
    """Return the config of the teacher's run."""
    return with_trainer(replace(config, distil=None), output_dir=str(config.output_dir / TEACHER))


def student_of(config: Config) -> Config:
    """Answer the training rows with the trained teacher; return the config of the student.

    Rows whose answers are already in the file are not answered again.
    """
    distil, teacher = config.distil, config.output_dir / TEACHER
    assert distil is not None
    rule = replace(config.predict, decode=distil.decode).rule
    answers = config.output_dir / decoded_name(TRAINING_ANSWERS, rule)
    predict(
        teacher,
        config.data.train,
        answers,
        limit=distil.rows,
        trust_remote_code=True,  # the user's config names the same code
        decode=distil.decode,
    )
    sources = tuple(
        replace(source, answers=str(answers), keep_answers=distil.keep)
        for source in listed(config.data.train)
    )
    student = replace(
        config,
        data=replace(config.data, train=sources),
        model=replace(config.model, name=str(teacher / MODEL), revision="main"),
        objective=read_objective("ce", "distil"),
        distil=None,
    )
    return with_trainer(student, **distil.trainer)
