"""Importers: convert published data sets to rows of this library. Imports no torch."""
