"""Find numbers in text (numerals), in a tokenizer (vocabulary) and in a batch (spans)."""
