"""Load, adapt, group and export model weights."""
