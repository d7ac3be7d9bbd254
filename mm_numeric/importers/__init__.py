"""Importers: files in a published format in, rows of this library out. Loads no torch."""
