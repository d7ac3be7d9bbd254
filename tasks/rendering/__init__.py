"""Renderers of synthetic images, such as clock faces, scenes and pages of words."""
