"""Renderers of synthetic images: clock faces, scenes and pages of words."""
