"""The numeric loss terms, one file for each kind."""
