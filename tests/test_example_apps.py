"""The pages of examples/, served and asked by the libraries that they are written with."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from decompx_fast import DecompX

EXAMPLES = Path(__file__).parent.parent / "examples"
TEXT = "A <b>joy</b> to watch."

pytestmark = pytest.mark.slow


def untimed(html: str) -> str:
    """Without how long it took."""
    return re.sub(r"<dd>[\d.]+ s</dd>", "", html)


def test_page_of_gradio_explains_what_is_typed(monkeypatch):
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    pytest.importorskip("gradio", reason="`make test` installs it")
    from gradio_client import Client

    page = runpy.run_path(str(EXAMPLES / "gradio_app.py"))["page"]()
    _, address, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    try:
        client = Client(address, verbose=False)
        shown = client.predict(TEXT, api_name="/explain")
        assert untimed(shown) == untimed(DecompX.demo()(TEXT).to_html()) and "<b>joy</b>" not in shown
        assert client.predict(" ", api_name="/explain") == "<p>Type a text.</p>"
    finally:
        page.close()


def test_page_of_streamlit_explains_what_is_typed_and_chosen():
    pytest.importorskip("streamlit", reason="`make test` installs it")
    from streamlit.testing.v1 import AppTest

    page = AppTest.from_file(str(EXAMPLES / "streamlit_app.py"), default_timeout=60).run()
    page.text_input[0].set_value(TEXT).run()
    one = DecompX.demo()(TEXT)
    assert not page.exception and page.selectbox[0].value == one.predicted_label == "POSITIVE"
    for target in one.targets:
        page.selectbox[0].set_value(target).run()
        assert untimed(page.get("html")[0].proto.body) == untimed(one.to_html(target))
        column, words = one.column(target), one.words()
        assert page.dataframe[0].value["score"].tolist() == pytest.approx(words.scores[:, column].tolist())
    page.text_input[0].set_value(" ").run()
    assert not page.exception and page.info[0].value == "Type a text."
