"""The generator of synthetic rows for each task, and data sources with its rows."""

GENERATOR_OF = {
    "approximate_numbers": "charts",
    "arithmetic": "arithmetic",
    "click": "screens",
    "clock": "clocks",
    "counting": "counts",
    "detection": "objects",
    "grounding": "phrases",
    "measurement": "instruments",
    "pointing": "points",
    "temporal_spans": "clips",
    "text_detection": "words",
    "text_spotting": "words",
}


def rows_for(task, rows, seed=0, **settings):
    """Return a data source of a config with synthetic rows for a task."""
    name = GENERATOR_OF[task]
    return {"synthetic": {"name": name, "rows": rows, "seed": seed, **settings}}


def data_for(task, train, test, **settings):
    """Return the overrides of a config for synthetic training and test rows for a task."""
    return [
        f"data.train={rows_for(task, train, 1, **settings)}",
        f"data.test={rows_for(task, test, 2, **settings)}",
    ]
