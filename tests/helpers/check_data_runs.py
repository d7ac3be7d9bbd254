"""Configs for ``check-data``, and what it finds."""

from mm_numeric.config.reader import config_from_dict


def config_of(folder, train, test=None, **changes):
    raw = {
        "task": "grounding",
        "data": {"train": {"path": str(train)}, "test": {"path": str(test or train)}},
        "model": {"name": "tiny", "dtype": "float32", "image_size": {"max_pixels": 100 * 100}},
        "trainer": {"output_dir": str(folder / "run")},
        "predict": {"max_new_tokens": 64},
        **changes,
    }
    return config_from_dict(raw, where="test", title="test")


def kinds(report, split=0):
    return {kind: len(f.messages) for kind, f in report.sources[split].problems.items()}
