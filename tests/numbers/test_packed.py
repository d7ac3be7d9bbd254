"""Numbers of packed documents: no number continues in the next document of its row."""

import pytest
import torch
from tokens import VOCABULARY, labels_of

from mm_numeric.losses.numeric_loss import NumericLoss
from mm_numeric.numbers.spans import NumberSpans, document_ids, shifted
from mm_numeric.training.integrations import count_numbers


def packed(*documents):
    """Return labels [1, t] aligned with the input, and position ids that start again."""
    labels = labels_of("".join(documents))
    positions = [torch.arange(len(text)) for text in documents]
    return labels, torch.cat(positions)[None]


@pytest.mark.parametrize(
    ("documents", "joined", "apart"),
    [
        (("x12", "34x"), [1234], [12, 34]),
        (("x3.", "14x"), [3.14], [3, 14]),
        (("x5", "-3"), [5, 3], [5, -3]),
        (("x1,", "234"), [1234], [1, 234]),
        (("x7", "8", "9"), [789], [7, 8, 9]),
    ],
)
@pytest.mark.parametrize("shift", [False, True])
def test_numbers_end_with_their_document(documents, joined, apart, shift):
    labels, positions = packed(*documents)
    aligned = shifted(labels) if shift else labels
    ids = document_ids(positions, shift=shift)
    found = [
        NumberSpans.from_labels(
            aligned, VOCABULARY, thousands_separators=True, documents=documents
        ).value.tolist()
        for documents in (None, ids)
    ]
    assert found == [joined, apart]
    made = NumericLoss("ntl_was", vocabulary=VOCABULARY, thousands_separators=True)
    spans, counts = count_numbers(made, aligned, documents=ids)
    assert spans.value.tolist() == apart
    assert counts[2] == len(apart)


@pytest.mark.parametrize(
    ("positions", "found"),
    [
        ([0, 2, 4, 6], [1234]),  # jumps, as of every second token of a text
        ([0, 1, 1, 1], [1234]),  # a patch of an image may have the position of another
        ([5, 6, 7, 9], [1234]),
        ([0, 2, 0, 3], [12, 34]),
        ([4, 6, 1, 2], [12, 34]),  # after left padding, for example
        ([0, 0, 1, 0], [1, 23, 4]),  # two documents have one token
    ],
)
def test_documents_begin_where_positions_fall(positions, found):
    ids = document_ids(torch.tensor([positions]), shift=False)
    spans = NumberSpans.from_labels(labels_of("1234"), VOCABULARY, documents=ids)
    assert spans.value.tolist() == found


def test_documents_of_another_shape_are_rejected():
    labels, _ = packed("12", "34")
    with pytest.raises(ValueError, match=r"documents must have the shape of the labels, \[1, 4\]"):
        NumberSpans.from_labels(labels, VOCABULARY, documents=torch.zeros(1, 3))


@pytest.mark.parametrize("key", ["position_ids", "attention_mask", None])
def test_the_mixin_knows_the_documents(key, tmp_path):
    """From position ids that start again, or a mask that numbers the documents (LLaMA-Factory)."""
    transformers = pytest.importorskip("transformers")
    from mm_numeric import NumericLossMixin

    class NumericTrainer(NumericLossMixin, transformers.Trainer):
        """Trainer, with an objective."""

    config = transformers.LlamaConfig(
        vocab_size=22, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    trainer = NumericTrainer(
        transformers.LlamaForCausalLM(config),
        transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none"),
        objective=NumericLoss("ntil_soft", vocabulary=VOCABULARY),
    )
    labels, positions = packed("_x12", "34x")
    mask = torch.tensor([[1, 1, 1, 1, 2, 2, 2]])
    batch = {"input_ids": labels.clamp(min=0), "labels": labels}
    if key is not None:
        batch[key] = {"position_ids": positions, "attention_mask": mask}[key]
    batches, _ = trainer.get_batch_samples(iter([dict(batch)]), 1, torch.device("cpu"))
    expected = [1234] if key is None else [12, 34]
    assert batches[0]["spans"].value.tolist() == expected
    assert trainer._counts.numbers == len(expected)
    _, labels, spans, _ = trainer._model_inputs(trainer.model, batch)  # as evaluate does
    spans = trainer.objective.spans(labels) if spans is None else spans
    assert spans.value.tolist() == expected
