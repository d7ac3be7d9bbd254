"""Old import paths that a config may contain, and the new path of each; removed after one release.

``registry.load`` reads this table: an old path still loads, with a warning that prints the new one.
"""

MOVED_MODULES: dict[str, str] = {
    "mm_numeric.evaluation.bootstrap": "mm_numeric.evaluation.metrics.bootstrap",
    "mm_numeric.evaluation.boxes": "mm_numeric.evaluation.metrics.boxes",
    "mm_numeric.evaluation.coco_ap": "mm_numeric.evaluation.metrics.coco_ap",
    "mm_numeric.evaluation.detection": "mm_numeric.evaluation.metrics.detection",
    "mm_numeric.evaluation.deteval": "mm_numeric.evaluation.metrics.deteval",
    "mm_numeric.evaluation.extraction": "mm_numeric.evaluation.metrics.answer_extraction",
    "mm_numeric.evaluation.gsm8k": "mm_numeric.evaluation.metrics.gsm8k",
    "mm_numeric.evaluation.mathvista": "mm_numeric.evaluation.metrics.mathvista",
    "mm_numeric.evaluation.ngrams": "mm_numeric.evaluation.metrics.bleu_rouge",
    "mm_numeric.evaluation.numbers": "mm_numeric.evaluation.metrics.numbers",
    "mm_numeric.evaluation.overlaps": "mm_numeric.evaluation.metrics.polygon_iou",
    "mm_numeric.evaluation.pairing": "mm_numeric.evaluation.metrics.matching",
    "mm_numeric.evaluation.scorer": "mm_numeric.evaluation.metrics.base",
    "mm_numeric.evaluation.texts": "mm_numeric.evaluation.metrics.text",
    "mm_numeric.evaluation.times": "mm_numeric.evaluation.metrics.clock",
    "mm_numeric.losses.distance": "mm_numeric.losses.terms.expected_distance",
    "mm_numeric.losses.entropies": "mm_numeric.losses.terms.digit_entropy",
    "mm_numeric.losses.moments": "mm_numeric.losses.terms.expected_value",
    "mm_numeric.losses.proper": "mm_numeric.losses.terms.proper_scores",
    "mm_numeric.losses.sequence": "mm_numeric.losses.terms.whole_number",
    "mm_numeric.losses.shapes": "mm_numeric.losses.terms.boxes_and_times",
    "mm_numeric.losses.targets": "mm_numeric.losses.terms.soft_targets",
}
