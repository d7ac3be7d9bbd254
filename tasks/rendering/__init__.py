"""Renderers of synthetic images, such as clock faces, scenes, cuboids and pages of words."""
