"""Evaluation: metrics, scoring of predictions, comparison of runs, and reports."""

if __name__ != "mm_numeric.evaluation":
    raise ImportError(
        "import mm_numeric.evaluation: a bare `import evaluation` loads a second copy of it."
    )
