"""From rows and images to training batches.

In: rows of files, of Hugging Face data sets, or rendered rows (``examples``, ``huggingface``). Out:
padded batches with labels and number spans (``collator``).
"""
