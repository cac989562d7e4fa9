"""The service's page in a browser, under its own policy: what is typed, sent and shown."""

from __future__ import annotations

import pytest
from browsing import NEEDS_BROWSER
from serving import Command

from decompx_fast import DecompX

pytestmark = [pytest.mark.slow, NEEDS_BROWSER]

TYPED = 'a <b onclick="x()">sharp</b> film'

FILL = """
const form = document.querySelector("form");
form.querySelector("textarea").value = arguments[0];
form.querySelector("[name=bias]").value = arguments[1];
form.querySelector("button").click();
"""

#: Of each token, what it says of itself, and the depth of its colour as the policy let it through.
TOKENS = """
return [...document.querySelectorAll(".dx-text .dx-token")].map((node) =>
  [node.title, Number(getComputedStyle(node).getPropertyValue("--a"))]);
"""


@pytest.fixture(scope="module")
def address(model):
    command = Command("--model", model, "--workers", "1")
    try:
        command.event("worker_ready")
        yield f"http://127.0.0.1:{command.event('listening')['port']}/"
    finally:
        command.end()


def test_what_is_typed_is_explained_in_colours_and_nothing_is_blocked(browser, address, model):
    browser.log()
    browser.open(address)
    browser.run(FILL, TYPED, "equal")
    assert browser.run("return document.querySelector('textarea').value") == TYPED
    tokens = browser.run(TOKENS)
    expected = DecompX.from_pretrained(model).explain(TYPED, bias="equal")
    scores = expected.scores[:, expected.column()].tolist()
    assert [float(title.split()[-2]) for title, _ in tokens] == pytest.approx(scores, abs=1e-3)
    largest = max(abs(s) for s, special in zip(scores, expected.special, strict=True) if not special)
    shares = [0.6 * min(1, abs(score) / largest) for score in scores]
    assert [colour for _, colour in tokens] == pytest.approx(shares, abs=2e-3)
    assert TYPED in browser.run("return document.querySelector('.dx-text').textContent")
    assert not browser.run("return document.querySelectorAll('[onclick]').length")
    # What a policy blocks is in the log of the browser, and so is what cannot be loaded.
    assert browser.log() == []


def test_what_is_wrong_is_said_on_the_page(browser, address):
    browser.open(address)
    browser.run(FILL, " ", "equal")
    assert "type one" in browser.run("return document.body.textContent")
