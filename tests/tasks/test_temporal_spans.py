"""Temporal spans: seconds in text, IoU as in the official scripts, and frames as images."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask
from tiny_chats import CHATS
from tiny_models import TINY
from tiny_qwens import each_qwen, qwen, qwen_model

from mm_numeric.answers import IMAGE, TimeSpans, Unreadable
from mm_numeric.config.data import DataSource
from mm_numeric.config.schema import ModelConfig
from mm_numeric.data.collator import BATCH_KEYS, TrainingCollator, prompt_batch
from mm_numeric.data.examples import fingerprint, load_examples
from mm_numeric.data.image_cache import ImageCache
from mm_numeric.data.lengths import LengthLimit, TooLongError
from mm_numeric.evaluation.metrics.temporal_spans import SPANS, temporal_iou
from mm_numeric.evaluation.score import score
from mm_numeric.families.chat import Chat
from mm_numeric.families.llava import Llava
from mm_numeric.families.paligemma import PaliGemma
from mm_numeric.families.qwen2_5_vl import Qwen2_5VL
from mm_numeric.families.qwen2_vl import Qwen2VL
from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.losses.presets import PRESETS
from mm_numeric.synthetic.clips import Clips
from mm_numeric.tasks.temporal_spans import FindSpans, evenly

TASK = FindSpans()
ROW = {"id": "1", "frames": ["a.png", "b.png"], "seconds": [0, 1.5], "query": "a person sits.",
       "spans": [[24.3, 30.4]]}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("24.3 - 30.4 seconds", [(24.3, 30.4)]),
        ("The event happens in 24.3-30.4 seconds.", [(24.3, 30.4)]),
        ("It happens from 24.3 to 30.4 seconds", [(24.3, 30.4)]),
        ("between 3 and 7.5 s", [(3, 7.5)]),
        ("24.3s – 30.4s", [(24.3, 30.4)]),
        ("from 3 seconds until 7 seconds", [(3, 7)]),
        ("0:24.30 - 1:30.4", [(24.3, 90.4)]),
        ("1.0 - 2.5, 24.3 - 30.4 seconds", [(1, 2.5), (24.3, 30.4)]),
        ('```json\n[{"start": "00:24.3", "end": "00:30.4", "description": "1 - 2"}]\n```',
         [(24.3, 30.4)]),
        ('{"start_time": 24.3, "end_time": 30.4}', [(24.3, 30.4)]),
        ("30.4 - 24.3 seconds", [(30.4, 24.3)]),
        ("24.3 - 30.400000000000002 seconds", [(24.3, 30.400000000000002)]),
        ('{"start": 24.299999999999997, "end": 30.400000000000002}',
         [(24.299999999999997, 30.400000000000002)]),
        ("10-20,30-40", [(10, 20), (30, 40)]),
        ("1 - 2,100 - 200 seconds", [(1, 2), (100, 200)]),
        ("1 - 1,100, 1,200 - 1,300", [(1, 1100), (1200, 1300)]),
        ("1,234.5 to 1,300 seconds", [(1234.5, 1300)]),
        ("[[82, 150], [4, 6.5]]", [(82, 150), (4, 6.5)]),
        ("From 3 to 5 seconds (see [1, 2]).", [(3, 5)]),
    ],
)  # fmt: skip
def test_spans_are_read_in_the_forms_that_models_write(text, spans):
    assert TASK.parse(text) == TimeSpans(tuple(spans))


@pytest.mark.parametrize("number_format", ["1.234,5", "1 234,5"])
def test_a_decimal_comma_is_read_if_the_task_says_so(number_format):
    task = FindSpans(number_format=number_format)
    assert task.parse("24,3 - 30,4 seconds").spans == ((24.3, 30.4),)
    assert task.parse("10 - 20,5, 30,25 - 40").spans == ((10, 20.5), (30.25, 40))
    thousand = number_format.replace(",5", "")
    assert task.parse(f"von {thousand} to {thousand},5").spans == ((1234, 1234.5),)
    assert task.parse('[{"start": 24.300, "end": 30.400}]').spans == ((24.3, 30.4),)  # JSON
    assert task.format(TimeSpans(((24.3, 30.4),))).text == "24.3 - 30.4 seconds"


@pytest.mark.parametrize("text", ["24,3 - 30,4 seconds", "24,3 - 30 s", "3 - 30,4", "2 - 3, 1,5-2"])
def test_a_decimal_comma_is_no_span_otherwise(text):
    """Trap: 24,3 - 30,4 was the span 3 - 30."""
    assert TASK.parse(text) == Unreadable("a comma inside a number; see the option number_format")
    with pytest.raises(ValueError, match=r"number_format is one of 1,234\.5, .*, not '1'"):
        FindSpans(number_format="1")


@pytest.mark.parametrize(
    ("text", "spans", "scores"),
    [
        ("[[82, 150, 0.25], [4, 6, 9.5e-05]]", [(82, 150), (4, 6)], (0.25, 9.5e-05)),
        ('[{"start": 1, "end": "0:02", "score": -3}]', [(1, 2)], (-3,)),
        ("[[82, 150, 0.25], [4, 6]]", [(82, 150), (4, 6)], ()),
    ],
)
def test_spans_in_json_may_have_scores(text, spans, scores):
    found = TASK.parse(text)
    assert (found.spans, found.scores) == (tuple(spans), scores)


@pytest.mark.parametrize(
    ("text", "lenient"),
    [
        ("", None),
        ("at the end", None),
        ("24.3", None),
        ("1, 2, 3", None),
        ("[1, 2, 3]", None),
        ('{"start": 24.3, "end": 1234567.5}', None),
        ("It starts at 24.3 s and it ends at 30.4 s.", ((24.3, 30.4),)),
    ],
)
def test_other_texts_have_a_reason(text, lenient):
    found = TASK.parse(text)
    assert isinstance(found, Unreadable)
    assert found.reason
    assert (found.lenient and found.lenient.spans) == lenient


@given(text=st.text(st.sampled_from('0139.:-– to{}"startendconds,\n\ud800')))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_text_is_a_list_of_spans_or_a_reason(text):
    found = TASK.parse(text)
    assert found.reason if isinstance(found, Unreadable) else found.spans


def test_parsing_takes_linear_time():
    for text in ("1 - " * 30_000, '"start": 1, ' * 20_000, "1:" * 50_000, "9" * 100_000):
        TASK.parse(text)  # quadratic time would take minutes


def official_r1(windows, truths, thresholds):
    """compute_mr_r1 of moment_detr/standalone_eval/eval.py for one query, as loops."""
    (start, end, _), best = windows[0], None
    for low, high in truths:
        inter = max(0, min(end, high) - max(start, low))
        iou = inter / ((end - start) + (high - low) - inter)
        if best is None or iou > best[0]:
            union = max(end, high) - min(start, low)  # of compute_temporal_iou_batch_paired
            best = iou, inter / union
    return [best[1] >= threshold for threshold in thresholds]


def official_ap(windows, truths, threshold):
    """compute_average_precision_detection of moment_detr for one query and one threshold."""
    ranked = sorted(windows[:10], key=lambda window: -window[2])
    lock, hits = [-1] * len(truths), []
    for idx, (start, end, _) in enumerate(ranked):
        ious = []
        for low, high in truths:
            inter = max(0, min(end, high) - max(start, low))
            ious.append(inter / ((end - start) + (high - low) - inter))
        hit = 0
        for j in np.array(ious).argsort()[::-1]:
            if ious[j] < threshold:
                break
            if lock[j] >= 0:
                continue
            hit, lock[j] = 1, idx
            break
        hits.append(hit)
    tp, fp = np.cumsum(hits), np.cumsum(1 - np.array(hits))
    precision, recall = [0, *(tp / (tp + fp)), 0], [0, *(tp / len(truths)), 1]
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    return sum(
        (recall[i] - recall[i - 1]) * precision[i]
        for i in range(1, len(recall))
        if recall[i] != recall[i - 1]
    )


def official(queries):
    """eval_moment_retrieval of moment_detr: for each range of lengths the number of queries, mAP
    at each threshold and average, and R1. A query is (windows with scores, true windows)."""
    thresholds = [round(0.5 + 0.05 * i, 2) for i in range(10)]
    ranges = {"short": (0, 10), "middle": (10, 30), "long": (30, 150), "full": (0, 150)}
    figures = {}
    for name, (low, high) in ranges.items():
        kept = []
        for windows, truths in queries:
            if name != "full":
                truths = [w for w in truths if low < w[1] - w[0] <= high]
            if truths:
                kept.append((windows, truths))
        ap = np.array([[official_ap(*query, t) for t in thresholds] for query in kept]).mean(0)
        r1 = np.array([official_r1(*query, (0.3, 0.5, 0.7)) for query in kept]).mean(0)
        figures[name] = {
            "rows": len(kept),
            "map": ap.mean(), "map_at_0.5": ap[0], "map_at_0.75": ap[5],
            "r1_at_0.3": r1[0], "r1_at_0.5": r1[1], "r1_at_0.7": r1[2],
        }  # fmt: skip
    return figures


def queries_like_qvhighlights(rng, count):
    """Clips of 2 s as truths, one to four of them, and up to twelve windows near to some of them;
    equal windows, equal scores and windows that are right for several truths are among them."""
    queries = []
    for _ in range(count):
        edges = sorted(rng.sample(range(76), 2 * rng.randint(1, 4)))
        truths = [[2 * a, 2 * b] for a, b in zip(edges[::2], edges[1::2], strict=True)]
        windows = []
        for _ in range(rng.randint(1, 12)):
            low, high = rng.choice(truths)
            shift = rng.choice([0, 0, 1, -1.5, rng.uniform(-20, 20)])
            low = max(0, low + shift)
            high = max(low + 0.5, high + rng.choice([0, 2, rng.uniform(-9, 9)]))
            windows.append([round(low, 2), round(high, 2), round(rng.uniform(0, 1), 1)])
        queries.append((windows, truths))
    return queries


@pytest.mark.parametrize("scored", [True, False])
def test_the_figures_are_those_of_qvhighlights_script(tmp_path, scored):
    queries = queries_like_qvhighlights(random.Random(7), 100)
    if not scored:  # the order of the text is the rank
        queries = [([[a, b, 0] for a, b, _ in windows], true) for windows, true in queries]
    lines = []
    for i, (windows, truths) in enumerate(queries):
        text = ", ".join(f"{a} - {b}" for a, b, _ in windows) + " seconds"
        row = {"id": str(i), "text": json.dumps(windows) if scored else text, "target": truths}
        lines.append(json.dumps({**row, "task": "temporal_spans"}) + "\n")
    (tmp_path / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
    scores = score(tmp_path / "predictions.jsonl")
    wanted = official(queries)
    everything = {name: value["value"] for name, value in scores.metrics().items()}
    found = {"full": {**everything, "rows": len(scores.rows)}}
    for length, own in scores.buckets()["length"].items():
        assert everything[f"map_{length}"] == pytest.approx(wanted[length]["map"])
        values = {name: value["value"] for name, value in own["metrics"].items()}
        found[length] = {**values, "rows": own["rows"]}
    for name, figures in wanted.items():
        for metric, value in figures.items():
            assert found[name][metric] == pytest.approx(value, abs=1e-12), (name, metric)
    assert sum(own["rows"] for name, own in found.items() if name != "full") > 120  # in several
    assert wanted["short"]["r1_at_0.5"] != wanted["full"]["r1_at_0.5"]


def test_rows_without_a_span_count_as_zero_and_ap_is_a_hand_made_figure():
    truth = TimeSpans(((0, 10), (20, 60)))
    answers = ["0 - 10, 100 - 110, 20 - 60", "none", "0 - 8, 0 - 10"]
    columns = SPANS.judge([TASK.parse(text) for text in answers], [truth] * 3)
    # 1/1 and 2/3 at all thresholds; 0 - 8 has IoU 0.8, and is right once at seven of ten.
    assert columns["ap"] == pytest.approx([(1 + 2 / 3) / 2, 0, (7 * 1 + 3 / 2) / 2 / 10])
    assert columns["short_ap"] == pytest.approx([1, 0, 0.7 + 0.3 / 2])
    assert columns["long_ap"] == pytest.approx([1 / 3, 0, 0])
    assert columns["middle"].tolist() == [0, 0, 0]
    values = {m.name: m.value(columns) for m in SPANS.metrics}
    assert np.isnan(values["map_middle"])
    assert values["map_long"] == pytest.approx(1 / 9)


def test_the_iou_is_that_of_boxes():
    rng = random.Random(4)
    pairs = [[tuple(sorted(rng.sample(range(40), 2))) for _ in range(2)] for _ in range(200)]
    for one, other in pairs:
        boxes = [[[a, 0, b - a, 1]] for a, b in (one, other)]
        theirs = mask.iou(*np.array(boxes, float), [0]).item()  # pycocotools, of height 1
        assert temporal_iou(one, other) == pytest.approx(theirs)


def test_only_the_first_span_counts_and_a_reversed_one_is_wrong():
    """Trap: many spans are one attempt, and TALL's IoU of distant spans is negative."""
    target = TimeSpans(((10.0, 20.0),))
    texts = ["0 - 1, 10 - 20 seconds", "10 - 20, 0 - 1 seconds", "20 - 10 seconds", "10 - 15 s",
             "15 - 15 seconds", "100 - 200 seconds"]  # fmt: skip
    columns = SPANS.judge([TASK.parse(text) for text in texts], [target] * len(texts))
    assert columns["iou"].tolist() == [0, 1, 0, 0.5, 0, 0]
    values = {m.name: m.value(columns) for m in SPANS.metrics}
    assert (values["r1_at_0.5"], values["r1_at_0.7"]) == (2 / 6, 1 / 6)
    assert temporal_iou((0, 4), (1, 3)) == 0.5


def test_frames_are_shown_with_their_times():
    (example,) = TASK.examples([("rows.jsonl:1", ROW)], training=True)
    assert example.prompt.startswith(f"<0.0 seconds>{IMAGE}<1.5 seconds>{IMAGE}When does this")
    assert "a person sits? Answer" in example.prompt
    assert [image.name for image in example.images] == ["a.png", "b.png"]
    written = TASK.format(example.answer)
    assert [written.text[m.start : m.end] for m in written.marks] == ["24.3", "30.4"]
    many = {**ROW, "frames": [f"{i}.png" for i in range(31)], "seconds": None, "fps": 2}
    (example,) = FindSpans(max_frames=4).examples([("x", many)], training=True)
    assert [image.name for image in example.images] == ["0.png", "10.png", "20.png", "30.png"]
    assert "<5.0 seconds>" in example.prompt
    assert [evenly(5, most) for most in (1, 2, 4, 9)] == [
        [2], [0, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"frames": "clip.mp4"}, "no frames; .*Video files are not decoded: extract frames first"),
        ({"seconds": [0, 0]}, "seconds: expected 2 ascending times, one for each frame"),
        ({"seconds": [0]}, "seconds: expected 2 ascending times"),
        ({"seconds": None}, "seconds: expected a list of numbers"),
        ({"spans": [[3, 2]]}, r"spans: a span is \[start, end\] in seconds"),
        ({"spans": []}, r"spans: expected a list such as \[\[24.3, 30.4\]\], found \[\]"),
        ({"query": ""}, "no query"),
        ({"id": None}, "no id"),
    ],
)
def test_a_row_that_cannot_be_used_is_an_error(fields, message):
    with pytest.raises(ValueError, match=f"^rows.jsonl:1.*{message}"):
        list(TASK.examples([("rows.jsonl:1", {**ROW, **fields})], training=True))


def test_a_clip_shows_the_square_in_its_span(tmp_path):
    task = FindSpans()
    source = DataSource(synthetic=Clips(rows=6, seed=2))
    for example in load_examples(task, source, tmp_path, training=True):
        ((start, end),) = example.answer.spans
        first = np.asarray(Image.open(example.image), dtype=float)
        assert first.shape == (56, 56, 3)
        colour = example.prompt.split("the ")[1].split()[0]
        channel = {"red": 0, "green": 1, "blue": 2}.get(colour)
        if channel is None:
            continue
        for i, image in enumerate(example.images):
            pixels = np.asarray(Image.open(image), dtype=float)
            others = [c for c in range(3) if c != channel]
            seen = (pixels[..., channel] - pixels[..., others].max(axis=-1) > 60).sum() > 50
            assert seen == (start <= i < end)


def clips(folder, count=3, sizes=((56, 56),)):
    """Rows of clips with 2, 3, ... frames, whose images differ; return their examples."""
    lines, rng = [], np.random.default_rng(0)
    for i in range(count):
        names = [f"{i}_{frame}.png" for frame in range(i + 2)]
        for frame, name in enumerate(names):
            width, height = sizes[frame % len(sizes)]
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name)
        row = {"frames": names, "fps": 1, "query": f"event {i}", "spans": [[i, i + 1.5]]}
        lines.append(json.dumps({"id": str(i), **row}) + "\n")
    path = folder / "rows.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return load_examples(TASK, DataSource(path=str(path)), folder, training=True)


def conversation(example, answer):
    """The messages of a row as a user of transformers writes them."""
    texts = example.prompt.split(IMAGE)
    content = [{"type": "text", "text": texts[0]}]
    for image, text in zip(example.images, texts[1:], strict=True):
        content.append({"type": "image", "image": Image.open(image)})
        content.append({"type": "text", "text": text})
    return [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]


@each_qwen
def test_the_first_loss_is_that_of_a_conversation_with_several_images(tmp_path, cls):
    """Next to the chat template and the image processor alone, with placeholders by hand."""
    family, model = qwen(cls), qwen_model(cls)
    rows = clips(tmp_path)
    collate = TrainingCollator(family, TASK, family.vocabulary())
    batch = collate(rows)
    labels, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    tokenizer, processor = family.tokenizer, family.image_processor
    losses, count = torch.zeros(()), 0
    for example in rows:
        answer = TASK.format(example.answer).text
        turns = conversation(example, [{"type": "text", "text": answer}])
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        shown = [Image.open(image).convert("RGB") for image in example.images]
        inputs = processor(images=shown, return_tensors="pt")
        for grid in inputs["image_grid_thw"]:
            tokens = int(grid.prod()) // processor.merge_size**2
            text = text.replace("<|image_pad|>", "<|held|>" * tokens, 1)
        ids = tokenizer(text.replace("<|held|>", "<|image_pad|>"), return_tensors="pt")["input_ids"]
        end = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
        row = ids[0].tolist()
        start = next(i for i in range(len(row), 0, -1) if row[i : i + len(end)] == end)
        targets = torch.full_like(ids, -100)
        targets[0, start : start + len(end)] = ids[0, start : start + len(end)]
        with torch.no_grad():
            out = model(input_ids=ids, labels=targets, **inputs,
                        mm_token_type_ids=(ids == family.image_id).int())  # fmt: skip
        losses, count = losses + out.loss * len(end), count + len(end)
        frame = family.frame(*shown[0].size)
        assert collate.count(example, frame).total == start + len(end)
    with torch.no_grad():
        logits = model(**batch, logits_to_keep=supervised).logits
        batch["pixel_values"] = batch["pixel_values"].flip(0)
        other = model(**batch, logits_to_keep=supervised).logits
    found = NumericLoss(PRESETS["ce"], vocabulary=family.vocabulary())(logits, labels, spans).loss
    torch.testing.assert_close(found, losses / count, rtol=0, atol=1e-4)
    assert (logits - other).abs().max() > 1e-3  # the model sees its images


def test_the_chat_family_takes_several_images(tmp_path):
    CHATS["internvl"](tmp_path / "model", seed=0)
    config = ModelConfig(name="tiny", family="chat", dtype="float32")
    family = Chat.load(str(tmp_path / "model"), config)
    model = family.load_model(str(tmp_path / "model"), config).eval()
    rows = clips(tmp_path)
    collate = TrainingCollator(family, TASK, family.vocabulary())
    batch = collate(rows)
    labels, supervised, spans, _ = (batch.pop(key) for key in BATCH_KEYS)
    lengths = batch["attention_mask"].sum(1).tolist()
    frame = family.frame(56, 56)
    assert lengths == [collate.count(row, frame).total for row in rows]
    official = family.processor.apply_chat_template(
        [conversation(row, [{"type": "text", "text": "?"}])[:1] for row in rows],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
        processor_kwargs={"padding": True},
    )  # fmt: skip
    prompts, _ = prompt_batch(family, rows)
    assert torch.equal(prompts["input_ids"], official["input_ids"])
    torch.testing.assert_close(prompts["pixel_values"], official["pixel_values"])
    with torch.no_grad():
        logits = model(**batch, logits_to_keep=supervised).logits
    assert torch.isfinite(
        NumericLoss(PRESETS["ce"], vocabulary=family.vocabulary())(logits, labels, spans).loss
    )


def test_limits_and_the_cache_know_all_images(tmp_path):
    family = qwen(Qwen2_5VL)
    rows = clips(tmp_path, sizes=((112, 112),))
    plain = TrainingCollator(family, TASK, family.vocabulary())
    whole = plain(rows)
    cached = TrainingCollator(
        family, TASK, family.vocabulary(), image_cache=ImageCache(tmp_path / "cache")
    )
    for _ in range(2):
        torch.testing.assert_close(cached(rows)["pixel_values"], whole["pixel_values"])
    tokens, image_tokens, _ = plain.count(rows[2], family.frame(112, 112))
    assert (image_tokens, tokens) == (4 * 16, plain.length(rows[2]))
    smaller = replace(plain, length_limit=LengthLimit(tokens - 10, "resize"))
    assert smaller([rows[2]])["attention_mask"].sum() <= tokens - 10
    with pytest.raises(TooLongError, match="64 of them for its image"):
        replace(plain, length_limit=LengthLimit(tokens - 10, "stop")).length(rows[2])
    changed = replace(rows[0], more_images=rows[1].more_images)
    assert fingerprint(rows[:1]) != fingerprint([changed])


def test_what_cannot_be_shown_is_one_sentence(tmp_path):
    rows = clips(tmp_path, sizes=((56, 56), (84, 56)))
    family = qwen(Qwen2VL)
    with pytest.raises(ValueError, match="images of a row have one size, and these have 56 x 56"):
        TrainingCollator(family, TASK, family.vocabulary())(rows)
    for one in (PaliGemma, Llava):
        one.make_tiny(tmp_path / one.name, seed=0)
        family = one.load(str(tmp_path / one.name), TINY)
        with pytest.raises(ValueError, match=r"has 2 images, and model\.family \w+.* accepts one"):
            TrainingCollator(family, TASK, family.vocabulary())(clips(tmp_path)[:1])
    (clip,) = clips(tmp_path, 1)
    family = qwen(Qwen2VL)
    with pytest.raises(ValueError, match="has 1 places for images, and 2 images; write mm_numeric"):
        TrainingCollator(family, TASK, family.vocabulary())([replace(clip, prompt="When?")])
    (tmp_path / "0_1.png").unlink()
    with pytest.raises(ValueError, match=r"there is no image .*0_1\.png"):
        load_examples(TASK, DataSource(path=str(tmp_path / "rows.jsonl")), tmp_path, training=True)
