"""Rows of shards and data sets, as a list and as a stream: each once, in one order on any ranks."""

import gzip
import json
import pickle
import random
import zipfile
from collections import Counter
from datetime import datetime
from itertools import chain, islice

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixed_rows import Counts
from PIL import Image
from tiny_models import small_config

from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import DataConfig
from mm_numeric.data.examples import load_examples
from mm_numeric.data.images import image_size, open_image
from mm_numeric.data.streaming import ExampleStream, shuffled, weighted_round_robin
from mm_numeric.synthetic.clock_faces import Clocks
from mm_numeric.tasks.detection import Detection
from mm_numeric.training.run import train


def write_shards(folder, counts=(3, 4, 5)):
    """Write shards of rows, every second one compressed; return a pattern of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for shard, count in enumerate(counts):
        lines = []
        for _ in range(count):
            lines.append(json.dumps({"id": str(number), "ask": f"{number}=", "answer": "7"}) + "\n")
            number += 1
        if shard % 2:
            (folder / f"{shard}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode()))
        else:
            (folder / f"{shard}.jsonl").write_text("".join(lines))
    return f"{folder}/*.jsonl*"


def data(*sources, **more):
    train = tuple(sources) if len(sources) > 1 else sources[0]
    return DataConfig(train=train, test=DataSource(synthetic=Clocks(rows=1)), stream=True, **more)


def ids(examples):
    return [example.id for example in examples]


def load(source, cache):
    return load_examples(Counts(), source, cache, training=True)


def test_shards_are_read_in_the_order_of_their_names(tmp_path):
    pattern = write_shards(tmp_path)
    wanted = [str(i) for i in range(12)]
    assert ids(load(DataSource(path=pattern), tmp_path)) == wanted
    files = tuple(str(tmp_path / name) for name in ("0.jsonl", "1.jsonl.gz", "2.jsonl"))
    examples = load(DataSource(path=files), tmp_path)
    assert ids(examples) == wanted
    assert examples[4].where == f"{tmp_path / '1.jsonl.gz'}, line 2"


@pytest.mark.parametrize("cut", [b"no gzip", None])
def test_a_shard_that_is_damaged_or_not_there_is_one_sentence(tmp_path, cut):
    write_shards(tmp_path)
    file = tmp_path / "1.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-9] if cut is None else cut)
    with pytest.raises(ValueError, match=r"1\.jsonl\.gz: cannot be read \(.*\)\.$"):
        load(DataSource(path=str(file)), tmp_path)
    with pytest.raises(ValueError, match=r"\*\.none: no file matches this pattern\.$"):
        load(DataSource(path=f"{tmp_path}/*.none"), tmp_path)


def test_a_shard_of_a_stream_that_is_not_there_is_found_at_once(tmp_path):
    write_shards(tmp_path)
    source = DataSource(path=(str(tmp_path / "0.jsonl"), str(tmp_path / "3.jsonl")))
    with pytest.raises(ValueError, match=r"3\.jsonl: there is no such file\.$"):
        ExampleStream(Counts(), data(source), seed=0).check()


def test_ids_are_unique_over_all_sources(tmp_path):
    source = DataSource(path=write_shards(tmp_path))
    with pytest.raises(ValueError, match=r"0\.jsonl, line 1: the id '0' is already used in .*line"):
        load((source, source), tmp_path)


@pytest.mark.parametrize("held", [1, 3, 100])
def test_shuffled_rows_are_each_there_once(held):
    rows = list(range(40))
    found = list(shuffled(rows, held, random.Random(1)))
    assert sorted(found) == rows
    assert (found != rows) == (held > 1)


def test_a_stream_has_every_row_once_a_pass_and_each_pass_its_order(tmp_path):
    pattern = write_shards(tmp_path)
    stream = ExampleStream(Counts(), data(DataSource(path=pattern), shuffle_rows=4), seed=1)
    found = ids(islice(stream.examples(), 36))
    passes = [found[i : i + 12] for i in (0, 12, 24)]
    assert all(sorted(each) == sorted(map(str, range(12))) for each in passes)
    assert passes[0] != passes[1] != passes[2]
    assert found == ids(islice(stream.examples(), 36))
    plain = ExampleStream(Counts(), data(DataSource(path=pattern)), seed=None)
    assert ids(islice(plain.examples(), 13)) == [*map(str, range(12)), "0"]


def test_a_stream_mixes_by_weight(tmp_path):
    one = DataSource(path=write_shards(tmp_path / "a"), weight=3)
    (tmp_path / "b.jsonl").write_text('{"id": "b", "ask": "1", "answer": "2"}\n')
    other = DataSource(path=str(tmp_path / "b.jsonl"), weight=1)
    stream = ExampleStream(Counts(), data(one, other), seed=None)
    counts = Counter(ids(islice(stream.examples(), 48)))
    assert counts["b"] == 12
    assert counts["0"] == 3


def steps(stream, ranks, batch_rows, accumulated, count, skipped=0):
    """Return the ids of the rows of each step, of all ranks."""
    stream.ranks, stream.batch_rows, stream.skipped = ranks, batch_rows, skipped * accumulated
    found = [[] for _ in range(count)]
    for rank in range(ranks):
        stream.rank = rank
        batches = iter(stream)
        for step in range(count):
            found[step] += ids(chain.from_iterable(islice(batches, accumulated)))
    return [sorted(step) for step in found]


def test_the_same_rows_are_in_the_same_steps_however_they_are_split(tmp_path):
    stream = ExampleStream(Counts(), data(DataSource(path=write_shards(tmp_path))), seed=3)
    wanted = steps(stream, 1, 4, 1, 9)
    assert Counter(chain.from_iterable(wanted[:3])) == Counter(map(str, range(12)))
    for ranks, batch_rows, accumulated in ((2, 2, 1), (4, 1, 1), (2, 1, 2), (1, 1, 4)):
        assert steps(stream, ranks, batch_rows, accumulated, 9) == wanted
        gone_on = steps(stream, ranks, batch_rows, accumulated, 9, skipped=4)
        assert gone_on == [[]] * 4 + wanted[4:]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"id": "a", "ask": "1", "answer": "2"}\n{', r"line 2: not JSON"),
        ("", r"no row contains a question; give at least one\.$"),
    ],
)
def test_a_row_of_a_stream_that_cannot_be_used_is_one_sentence(tmp_path, rows, message):
    (tmp_path / "a.jsonl").write_text(rows)
    stream = ExampleStream(Counts(), data(DataSource(path=str(tmp_path / "a.jsonl"))), seed=None)
    with pytest.raises(ValueError, match=message):
        list(islice(stream, 3))


def make_image(path):
    Image.new("RGB", (4, 4)).save(path)
    return str(path)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A data set with images in it, but for one row, as save_to_disk and as parquet."""
    folder = tmp_path_factory.mktemp("hub")
    shown = [Image.effect_noise((20 + i, 10), 40).convert("RGB") for i in range(4)]
    shown[2] = None
    rows = {
        "id": list("abcd"),
        "photo": shown,
        "ask": [f"{i}=" for i in range(4)],
        "answer": list("0123"),
    }
    kinds = datasets.Features(
        {
            **dict.fromkeys(("id", "ask", "answer"), datasets.Value("string")),
            "photo": datasets.Image(),
        }
    )
    made = datasets.Dataset.from_dict(rows, features=kinds)
    made.save_to_disk(str(folder / "saved"))
    (folder / "parquet").mkdir()
    made.to_parquet(str(folder / "parquet" / "part.parquet"))
    return folder, shown


@pytest.mark.parametrize("kind", ["saved", "parquet"])
@pytest.mark.parametrize("streamed", [False, True])
def test_images_of_a_data_set_are_those_in_it(images, tmp_path, kind, streamed):
    folder, shown = images
    source = DataSource(dataset=str(folder / kind))
    if streamed:
        stream = ExampleStream(Counts(), data(source, cache=str(tmp_path)), seed=None)
        found = list(islice(stream.examples(), 5))
        assert found.pop().id == "a"
    else:
        found = load(source, tmp_path)
    assert ids(found) == list("abcd")
    assert [example.answer for example in found] == list("0123")
    assert found[1].where == f"{folder / kind}, train, row 1"
    assert found[2].image is None
    for example, image in zip(found, shown, strict=True):
        if image is not None:
            assert image_size(example.image) == image.size
            assert open_image(example).tobytes() == image.tobytes()


@pytest.mark.parametrize("streamed", [False, True])
def test_images_of_a_data_set_may_be_in_an_archive(tmp_path, streamed):
    (tmp_path / "set").mkdir()
    with zipfile.ZipFile(tmp_path / "set" / "train.zip", "w") as archive:
        archive.write(make_image(tmp_path / "a.png"), "a.png")
        row = {"file_name": "a.png", "id": "a", "ask": "1=", "answer": "1"}
        archive.writestr("metadata.jsonl", json.dumps(row))
    source = DataSource(dataset=str(tmp_path / "set"))
    if streamed:
        stream = ExampleStream(Counts(), data(source, cache=str(tmp_path)), seed=None)
        (found,) = islice(stream.examples(), 1)
    else:
        (found,) = load(source, tmp_path)
    assert open_image(found).size == image_size(found.image) == (4, 4)


def test_a_data_set_that_is_not_there_is_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, split in ((str(tmp_path / "empty"), "train"), ("nobody/nothing", "train")):
        with pytest.raises(ValueError, match=r"data, dataset .*: it cannot be loaded \(") as caught:
            load(DataSource(dataset=name, split=split), tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("streamed", [False, True])
def test_other_columns_of_a_data_set_may_hold_anything(images, tmp_path, streamed):
    """Times, bytes and more images: no JSON, and nothing that a task asks for."""
    folder, shown = images
    made = datasets.load_from_disk(str(folder / "saved"))
    for name, column in (
        ("taken", [datetime(2020, 1, 1)] * 4),
        ("raw", [b"\xff"] * 4),
        ("second", [make_image(tmp_path / "second.png")] * 4),
        ("more", [[make_image(tmp_path / "more.png")]] * 4),
    ):
        made = made.add_column(name, column)
    made = made.cast_column("second", datasets.Image())
    made = made.cast_column("more", datasets.List(datasets.Image()))
    made.save_to_disk(str(tmp_path / "saved"))
    source = DataSource(dataset=str(tmp_path / "saved"))
    if streamed:
        stream = ExampleStream(Counts(), data(source, cache=str(tmp_path)), seed=None)
        found = list(islice(stream.examples(), 4))
    else:
        found = load(source, tmp_path)
    assert ids(found) == list("abcd")
    assert open_image(found[1]).tobytes() == shown[1].tobytes()


@pytest.mark.parametrize("streamed", [False, True])
def test_objects_of_a_json_data_set_need_not_have_the_same_fields(tmp_path, streamed):
    """``datasets`` reads them as a column ``Json``, whose elements are text in its table."""
    make_image(tmp_path / "a.png")
    box = {"box": [0, 0, 2, 2], "label": "bolt"}
    instances = [box, {**box, "ignore": True}, {"polygon": [0, 0, 2, 0, 2, 2], "label": "nut"}]
    (tmp_path / "set").mkdir()
    line = json.dumps({"id": "a", "image": "a.png", "instances": instances})
    (tmp_path / "set" / "train.jsonl").write_text(line)
    source = DataSource(dataset=str(tmp_path / "set"), images=str(tmp_path))
    if streamed:
        stream = ExampleStream(Detection(), data(source, cache=str(tmp_path)), seed=None)
        found = next(stream.examples())
    else:
        (found,) = load_examples(Detection(), source, tmp_path, training=True)
    read = [(item.label, item.ignore) for item in found.answer.items]
    assert read == [("bolt", False), ("bolt", True), ("nut", False)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "test"}, "one data set, and no split test"),
        ({"subset": "a"}, "one data set, and no subset"),
        ({"revision": "a"}, "one data set, and no revision"),
    ],
)
def test_a_split_that_a_saved_data_set_lacks_is_rejected(images, tmp_path, settings, message):
    source = DataSource(dataset=str(images[0] / "saved"), **settings)
    with pytest.raises(ValueError, match=message):
        load(source, tmp_path)


def test_a_stream_of_a_damaged_data_set_is_one_sentence(tmp_path):
    good = "".join(json.dumps({"id": str(i), "ask": "1=", "answer": "1"}) + "\n" for i in range(3))
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text(good + "{cut")
    source = DataSource(dataset=str(tmp_path / "rows"))
    stream = ExampleStream(Counts(), data(source, cache=str(tmp_path)), seed=None)
    with pytest.raises(
        ValueError, match=r"^data, dataset .*rows, train: reading stopped before the"
    ):
        list(islice(stream.examples(), 4))


@pytest.mark.slow
def test_a_data_set_is_trained_on_and_answered(images, tmp_path):
    """Its images have no file: messages name where they are stored."""
    folder, shown = images
    source = f"{{dataset: {folder / 'saved'}}}"
    config = small_config(
        tmp_path, "task={name: 'mixed_rows:Counts'}", f"data={{train: {source}, test: {source}}}",
        "trainer.max_steps=2", "trainer.save_strategy='no'", "evaluate={every_steps: 2}",
        "trainer.dataloader_num_workers=1", f"data.cache={tmp_path}",
        f"data.image_cache={tmp_path / 'images'}",
    )  # fmt: skip
    train(config)
    lines = (config.output_dir / "evaluation" / "predictions.jsonl").read_text().splitlines()
    places = [json.loads(line)["image"] for line in lines]
    assert f"{folder / 'saved'}, train, row 1, photo" in places
    assert None in places
    found = load(config.data.train, tmp_path)
    sent = pickle.loads(pickle.dumps(found))  # to a worker
    assert open_image(sent[0]).tobytes() == shown[0].tobytes()


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=4))
def test_each_source_has_its_share_all_along(weights):
    drawn = list(islice(weighted_round_robin(weights), 200))
    for count in (1, 7, 50, 200):
        had = Counter(drawn[:count])
        for i, weight in enumerate(weights):
            assert abs(had[i] - count * weight / sum(weights)) < len(weights)


def test_of_sources_that_lag_equally_the_first_is_next():
    assert list(islice(weighted_round_robin([1, 1, 1]), 6)) == [0, 1, 2, 0, 1, 2]
    assert list(islice(weighted_round_robin([1, 3]), 8)) == [1, 0, 1, 1, 1, 0, 1, 1]
