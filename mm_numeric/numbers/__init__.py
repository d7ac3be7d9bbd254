"""Find the numbers in a text, the number tokens of a tokenizer, and the numbers in a batch."""
