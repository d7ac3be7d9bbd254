"""How good it is: scorers that are plain functions, then score, compare and report."""

if __name__ != "mm_numeric.evaluation":
    raise ImportError(
        "import mm_numeric.evaluation: a bare `import evaluation` loads a second copy of it."
    )
