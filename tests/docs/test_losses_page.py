"""docs/losses.html in a browser: its formulas equal the library's, and its controls work."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import messages_of_frames
from term_losses import VALUES, digit_logits, marked_spans

from mm_numeric.answers import ClockTime, Number
from mm_numeric.inference.decision_rules import Candidate, decide
from mm_numeric.inference.risks import RELATIVE, within_minutes
from mm_numeric.losses.term import make_term
from mm_numeric.registry import TERMS
from mm_numeric.tasks.clock import Clock

PAGE = Path(__file__).parents[2] / "docs" / "losses.html"
NAMES = ["ce", *TERMS]
STATES = {"1": 90, "2": 110, "3": 10, "clock": 45}  # random states of each scene
RULES = ("greedy", "mean", "median", "mbr")
NUMBERS = {str(n): [Number(f"{i:0{n}d}") for i in range(10**n)] for n in (1, 2, 3)}

SCRIPT = """<script>
const wide = innerWidth > 1000, root = document.documentElement;
const sent = {sizes: [innerWidth, root.scrollWidth], sliders: [], examples: [], right: []};
if (wide) {
  const states = STATES;
  sent.results = states.map(([scene, label, P]) => {
    const losses = Losses.evaluate(scene, label, P), answers = Losses.decode(scene, P);
    return [Object.fromEntries(Object.entries(losses).map(([k, l]) => [k, [l.value, l.gradient]])),
      [...RULES.map(([rule]) => answers[rule]), answers.covered]];
  });
}
const now = () => [...document.querySelectorAll(".panel:first-child [role=slider]")].map((bar) =>
  Number(bar.getAttribute("aria-valuenow")));
const slider = (j) => document.querySelectorAll("[role=slider]")[j];
const key = (j, name) => slider(j).dispatchEvent(new KeyboardEvent("keydown", {key: name}));
sent.sliders.push(now());
for (const name of ["ArrowUp", "PageDown", "Home", "End"]) {
  key(4, name);
  sent.sliders.push(now());
}
const box = slider(7).getBoundingClientRect();
const at = (type, y) => slider(7).dispatchEvent(new PointerEvent(type, {bubbles: true, pointerId: 1,
  clientX: box.left + 3, clientY: box.top + y * box.height}));
HTMLElement.prototype.setPointerCapture = () => {};  // there is no real pointer
at("pointerdown", 0.9);
at("pointermove", 0.25);
at("pointerup", 0.25);
sent.sliders.push(now());
document.querySelector("input[name=loss]").click();
const link = location.hash, before = now();
for (const scene of wide ? ["2"] : ["1", "2", "3", "clock"]) {
  setScene(scene);
  for (const example of EXAMPLES.filter((each) => !each.only || each.only.includes(scene))) {
    show(example);
    const shown = [...document.querySelectorAll(".loss")].filter((row) => !row.hidden);
    sent.examples.push([scene, example.name, shown.length, root.scrollWidth,
      document.querySelector("main").textContent.includes("NaN")]);
    const answers = Losses.decode(kind(), state.P), correct = Losses.valueOf(kind(), state.label);
    sent.right.push([example.name, answers.greedy === correct, answers.median === correct]);
  }
}
location.hash = link;
addEventListener("hashchange", () => {
  sent.link = [before, now()];
  parent.postMessage(sent, "*");
}, {once: true});
</script>"""


def random_states():
    """Return [scene, label, probabilities]: random ones, then ties and certain answers."""
    source = np.random.default_rng(0)
    states = []
    for scene, count in STATES.items():
        highest = [9, 6, 10] if scene == "clock" else [10] * int(scene)
        one = np.eye(11)  # without ties of the mean, such as 4.5, which rounding errors decide
        special = [one[:9].sum(axis=0), one[5], one[0] + one[8], one[10] + one[3] / 1000]
        for i in range(count + len(special)):
            shape = (len(highest), 11)
            weights = np.exp(source.uniform(0.3, 4) * source.standard_normal(shape))
            if i >= count:
                weights = np.broadcast_to(special[i - count], shape) + 1e-4
            label = source.integers(highest) + ([1, 0, 0] if scene == "clock" else 0)
            probs = weights / weights.sum(axis=1, keepdims=True)
            states.append([scene, label.tolist(), probs.tolist()])
    return states


def library_losses(scene, labels, probs):
    """Return {term: (losses [b], gradients [b, n, 10])} of b states of one scene with n digits."""
    texts = ["".join(map(str, label)) for label in labels]
    clock = scene == "clock"
    spans = marked_spans(
        *((f"{t[0]}:{t[1:]}", "hour minute") if clock else (t, "free") for t in texts)
    )
    scores = torch.tensor(probs, dtype=torch.float64).log().reshape(-1, 11)
    digits = scores[:, :10].clone().requires_grad_()
    normaliser = torch.cat([digits, scores[:, 10:]], dim=1).logsumexp(dim=1)
    numbers = digit_logits(digits, normaliser, VALUES)
    found = {}
    for name in NAMES:
        if name == "ce":
            losses = normaliser - digits.gather(1, spans.target[:, None]).squeeze(1)
        else:
            losses = make_term(name, {})(numbers, spans)
        means = losses.reshape(len(labels), -1).mean(dim=1)
        (slopes,) = torch.autograd.grad(means.sum(), digits, retain_graph=True)
        found[name] = means.detach().numpy(), slopes.reshape(len(labels), -1, 10).numpy()
    return found


def library_answers(scene, probs):
    """Return the decoded answer of each rule, as a number or in minutes, and the probability."""
    weights = np.array(probs)
    texts, joint = [""], np.ones(1)
    for i, row in enumerate(weights):
        digits = range(*[(1, 10), (0, 6), (0, 10)][i]) if scene == "clock" else range(10)
        texts = [text + str(digit) for text in texts for digit in digits]
        joint = np.outer(joint, row[digits]).ravel()
    best = "".join("0123456789x"[j] for j in weights.argmax(axis=1))
    if scene == "clock":
        answers = [ClockTime(int(text[0]), int(text[1:])) for text in texts]
        risk, greedy = within_minutes(5), Clock().parse(f"{best[0]}:{best[1:]}")
        greedy = greedy if isinstance(greedy, ClockTime) else None
    else:
        answers = NUMBERS[scene]
        risk, greedy = RELATIVE, None if "x" in best else Number(best)
    candidates = [Candidate(*each) for each in zip(answers, texts, joint.tolist(), strict=True)]
    first = None if greedy is None else Candidate(greedy, best, 1.0)
    made = [decide(rule, candidates, risk, greedy=first) for rule in RULES]
    values = [d.answer.minutes if isinstance(d.answer, ClockTime) else d.answer for d in made]
    return [int(v.value) if isinstance(v, Number) else v for v in values], made[0].covered


@pytest.mark.slow
def test_formulas_and_controls_in_a_browser(tmp_path):
    states = random_states()
    of_page = [["clock" if s == "clock" else "number", label, probs] for s, label, probs in states]
    script = SCRIPT.replace("STATES", json.dumps(of_page))
    messages = messages_of_frames(PAGE.read_text(encoding="utf-8"), tmp_path, script, 390)
    narrow, wide = sorted((json.loads(message) for message in messages), key=lambda m: m["sizes"])
    results = wide.pop("results")
    assert len(results) == len(states) >= 250
    for scene in STATES:
        at = [i for i, state in enumerate(states) if state[0] == scene]
        labels, probs = ([states[i][k] for i in at] for k in (1, 2))
        expected = library_losses(scene, labels, probs)
        assert set(results[at[0]][0]) == set(expected)
        for name, (losses, gradients) in expected.items():
            values, slopes = zip(*(results[i][0][name] for i in at), strict=True)
            np.testing.assert_allclose(values, losses, rtol=1e-9, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(slopes, gradients, rtol=1e-9, atol=1e-12, err_msg=name)
        for i in at:
            *answers, covered = results[i][1]
            wanted, probability = library_answers(scene, states[i][2])
            assert answers == wanted, states[i]
            assert covered == pytest.approx(probability)
    for shown, width in ((narrow, 390), (wide, 1280)):
        check_controls(shown, width)
        names = [name for _, name, *_ in shown["examples"]]
        assert names[:4:3] == ["The median helps", "Certain and right"]
        right = [tuple(own) for own in shown["right"] if "median" in own[0]]
        expected = {("The median helps", False, True), ("The median harms", True, False)}
        assert set(right) == expected  # in each scene
    assert len(narrow["examples"]) > 25


def check_controls(shown, width):
    """Check what a frame reported about its size, sliders, examples and link."""
    assert shown["sizes"][0] == width >= shown["sizes"][1]
    first, up, down, home, end, dragged = shown["sliders"]
    for row in shown["sliders"]:
        assert sum(row) == pytest.approx(100, abs=0.06)
    assert up[4] == pytest.approx(first[4] + 1, abs=0.2)
    assert down[4] == pytest.approx(up[4] - 10, abs=0.2)
    assert (home[4], end[4]) == (0.01, 99.9)
    assert dragged[7] == pytest.approx(75, abs=0.2)
    for scene, name, losses, needed, has_nan in shown["examples"]:
        assert (losses, has_nan) == (len(NAMES), False), name
        assert needed <= width, (scene, name)
    before, after = shown["link"]
    assert after == pytest.approx(before, abs=0.02)
