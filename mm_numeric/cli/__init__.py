"""The commands of ``mm-numeric``. They import the rest of the library inside functions."""
