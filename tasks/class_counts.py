"""Count the objects of each class. ``check-data``, ``prepare`` and training report the counts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

_MAX_SHOWN = 20  # maximum number of classes in one line


@dataclass(frozen=True)
class ClassCounts:
    """Number of objects of each class in the rows of a data source."""

    objects: Mapping[str, int]
    """Number of objects of each class in the answers; 0 for a class that is only in prompts."""

    dropped: Mapping[str, int]
    """Number of objects of each class that answers leave out, because no prompt names the class."""

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield the counts as pairs of texts (name, value); yield nothing if there are none."""
        if self.objects:
            yield "objects", in_words(self.objects)
        if self.dropped:
            yield "dropped objects", f"{in_words(self.dropped)}; these classes are not asked for"

    def all_dropped(self) -> str | None:
        """Return a sentence on the dropped objects if none is kept, with the setting to change."""
        if not self.dropped or any(self.objects.values()):
            return None
        names = names_in_words(sorted(name for name in self.dropped if name), 300)
        return (
            f"all {sum(self.dropped.values()):,} objects are dropped, because their classes are "
            f"not asked for: {in_words(self.dropped)}; set task.classes: [{names}]."
        )

    def warnings(self, too_long: Mapping[str, int]) -> Iterator[str]:
        """Yield a sentence about each class that prompts name, but that no answer has.

        ``too_long`` maps a class to the number of its objects in rows that were dropped because
        they are too long.
        """
        if not any(too_long.values()) and (text := self.all_dropped()):
            yield text
            return
        absent = []
        for name in (name for name, count in self.objects.items() if count == 0):
            near = get_close_matches(name, self.dropped, n=1)
            if too_long.get(name):
                yield (
                    f"the class {name!r} is in no row that is trained on: the rows with its "
                    f"objects ({too_long[name]:,}) are longer than data.max_tokens; raise it."
                )
            elif near:
                yield (
                    f"the class {name!r} is in no row of the training data; did you mean "
                    f"{near[0]!r}?"
                )
            else:
                absent.append(name)
        if len(absent) == 1:
            yield f"the class {absent[0]!r} is in no row of the training data."
        elif absent:
            names = names_in_words(absent, 300)
            yield f"{len(absent)} classes are in no row of the training data: {names}."


def names_in_words(names: Sequence[str], limit: int = 100) -> str:
    """Return names as text of about ``limit`` characters, such as ``cup, dog and 78 more``."""
    shown = ", ".join(names)
    if len(shown) <= limit:
        return shown
    kept = shown[:limit].count(", ") or 1
    return f"{', '.join(names[:kept])} and {len(names) - kept:,} more"


def in_words(counts: Mapping[str, int]) -> str:
    """Return counts as text, such as ``7 bolt, 0 nut``; only the largest 20 classes are named."""
    items = list(counts.items())
    if len(items) > _MAX_SHOWN:
        items.sort(key=lambda item: -item[1])
    shown = [f"{count:,} {name}" for name, count in items[:_MAX_SHOWN]]
    if rest := items[_MAX_SHOWN:]:
        empty = sum(count == 0 for _, count in rest)
        without = f", {empty:,} of them without objects" if empty else ""
        shown.append(f"and {len(rest):,} more classes{without}")
    return ", ".join(shown)
