"""What the process that others are forked from does once, so that none of them does it anew."""

import gc
import importlib

import PIL.Image
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

for name in (
    "mm_numeric.cli",
    "mm_numeric.training.run",
    "mm_numeric.inference.generate",
    "mm_numeric.families.paligemma",
    "mm_numeric.families.qwen2_vl",
    "deepspeed",
    "deepspeed.runtime.zero.muon.muon_optimizer",  # imports torch._inductor, for any optimiser
):
    importlib.import_module(name)

PIL.Image.init()
get_checkpoint_conversion_mapping("qwen2_vl")  # makes the table of all models
gc.collect()
gc.freeze()  # accelerate runs the garbage collector in every training
