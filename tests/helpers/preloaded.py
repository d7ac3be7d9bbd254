"""What the process that others are forked from does once, so that none of them does it anew."""

import gc

gc.disable()  # until all is imported

import importlib  # noqa: E402
import json  # noqa: E402

import deepspeed.ops  # noqa: E402
import deepspeed.utils.nvtx  # noqa: E402
import PIL.Image  # noqa: E402
from cheap_lookups import make_cheap  # noqa: E402
from transformers.conversion_mapping import get_checkpoint_conversion_mapping  # noqa: E402

from mm_numeric.config.trainer_settings import trainer_settings  # noqa: E402
from mm_numeric.families import chat_template, template_process  # noqa: E402

for name in (
    "mm_numeric.cli.main",
    "mm_numeric.training.run",
    "mm_numeric.inference.generate",
    "mm_numeric.families.paligemma",
    "mm_numeric.families.qwen2_vl",
    "mm_numeric.losses.terms.expected_distance",
    "mm_numeric.tasks.clock",
    "predict_ranks",  # and, with it, pytest
    "rank_runs",
    "served_models",
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # imports torch._inductor, for any optimiser
):
    importlib.import_module(name)

# On a CPU, DeepSpeed would first compile its own sum over the ranks of one machine, for half a
# minute. Where it cannot, it uses gloo.
deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
deepspeed.utils.nvtx.enable_nvtx = False  # marks for a profiler around each of its functions
make_cheap()
# Each process would start a program for its chat template, in a fifth of a second.
chat_template._Program.ask = lambda _, request: template_process.answer(json.loads(request))
PIL.Image.init()
get_checkpoint_conversion_mapping("qwen2_vl")  # makes the table of all models
trainer_settings()  # parses the source of TrainingArguments
gc.freeze()  # accelerate runs the garbage collector in every training
gc.enable()
