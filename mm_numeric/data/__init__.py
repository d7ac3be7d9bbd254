"""Data loading: from rows and images to training batches.

Input: rows read from files or Hugging Face data sets, or rendered by a task (``examples``,
``huggingface``). Output: padded batches with labels and number spans, which are the tokens of each
number (``collator``).
"""
