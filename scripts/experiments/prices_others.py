"""Answer the test rows of prices_smollm2.yaml as a user without a language model would.

    python -m venv others && others/bin/pip install scikit-learn
    others/bin/python scripts/experiments/prices_others.py data/prices
    mm-numeric score data/prices/trees.jsonl --rows data/prices/test.jsonl \
        --task approximate_numbers --option tolerance=0.1

trees.jsonl     gradient-boosted trees of scikit-learn with their default settings, trained on the
                absolute error of the logarithm of the price
similar.jsonl   median price of the most similar training rows. The number of these rows, and the
                factor of the attribute carat, are those with the least median error on
                validation.jsonl

``--rows 3200`` trains on as many rows as a model sees in 200 steps of 16.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.neighbors import NearestNeighbors

ORDERED = {
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "color": list("JIHGFED"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}
"""Values of the attributes that are words, from worst to best."""


def main() -> None:
    """Write the answers of both methods."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--rows", type=int, metavar="N", help="train on the first N rows")
    args = parser.parse_args()
    train, validation, test = (
        [json.loads(line) for line in (args.folder / f"{split}.jsonl").open()]
        for split in ("train", "validation", "test")
    )
    train = train[: args.rows]
    trees = HistGradientBoostingRegressor(loss="absolute_error", random_state=0)
    trees.fit(numbers(train), np.log(prices(train)))
    write(args.folder / "trees.jsonl", test, np.exp(trees.predict(numbers(test))))

    def error(setting: tuple[int, float]) -> float:
        return float(np.median(np.abs(similar(train, validation, *setting) - prices(validation))))

    best = min(product((3, 5, 10, 15, 25, 50), (1.0, 3.0, 10.0)), key=error)
    print(f"similar.jsonl: {best[0]} rows, weight of the diamond times {best[1]:g}")
    write(args.folder / "similar.jsonl", test, similar(train, test, *best))


def numbers(rows: list[dict[str, Any]]) -> Any:
    """Return the attributes [rows, 6] as numbers: the logarithm of the weight first."""
    return np.array(
        [
            [np.log(float(row["carat"])), float(row["depth"]), float(row["table"])]
            + [values.index(row[name]) for name, values in ORDERED.items()]
            for row in rows
        ]
    )


def prices(rows: list[dict[str, Any]]) -> Any:
    """Return the true prices [rows] in dollars."""
    return np.array([float(row["answer"]) for row in rows])


def similar(train: list[Any], asked: list[Any], count: int, weight: float) -> Any:
    """Return for each row the median price of the ``count`` nearest training rows.

    Attributes are divided by their standard deviation, and the first is multiplied by ``weight``.
    """
    known = numbers(train)
    scale = np.array([weight, *[1.0] * 5]) / known.std(axis=0)
    nearest = NearestNeighbors(n_neighbors=count).fit(known * scale)
    _, found = nearest.kneighbors(numbers(asked) * scale)
    return np.median(prices(train)[found], axis=1)


def write(path: Path, rows: list[dict[str, Any]], answers: Any) -> None:
    """Write the answers to rows, as whole dollars."""
    lines = [
        {"id": row["id"], "text": str(round(own))} for row, own in zip(rows, answers, strict=True)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
