"""Configs: the schema of the YAML files, their reader, and the shipped ones. Loads no torch."""
