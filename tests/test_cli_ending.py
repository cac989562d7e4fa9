"""``decompx-fast explain``: runs that end early keep what is done."""

from __future__ import annotations

import json
import os
import signal

import pytest
from cli_explain import names_of, rows_of

from decompx_fast.calls import job


@pytest.fixture
def heard():
    """Signals that end a run, also where the tests themselves were started deaf to them (nohup, in the background)."""
    before = {sent: signal.getsignal(sent) for sent in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for sent, handler in before.items():
        signal.signal(sent, handler)


@pytest.mark.parametrize(
    ("sent", "said"),
    [(signal.SIGTERM, "ended by SIGTERM"), (signal.SIGHUP, "ended by SIGHUP"), (signal.SIGINT, "interrupted")],
)
def test_what_is_done_is_kept_when_the_run_is_ended(explain, tmp_path, monkeypatch, heard, sent, said):
    calls = 0
    linearize = job.linearize

    def ended(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 4:
            os.kill(os.getpid(), sent)
        return linearize(*arguments, **options)

    monkeypatch.setattr(job, "linearize", ended)
    before = signal.getsignal(sent)
    (tmp_path / "out.json").write_text("old", encoding="utf-8")
    outputs = [f"--{name}={tmp_path / f'out.{name}'}" for name in ("json", "jsonl", "html")]
    code, out, err = explain(*["a film"] * 9, "--batch-size", 1, "--quiet", *outputs)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"decompx-fast: {said}; 3 of 9 inputs were done before, and kept in ")
    assert names_of(tmp_path) == ["out.json", "out.jsonl", "out.partial.html", "out.partial.json"]
    assert all(str(tmp_path / name) in err for name in names_of(tmp_path)[1:])
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "old"
    rows = rows_of(tmp_path / "out.jsonl")
    assert len(rows) == 3 and json.loads((tmp_path / "out.partial.json").read_text(encoding="utf-8")) == rows
    page = (tmp_path / "out.partial.html").read_text(encoding="utf-8")
    assert page.count("<article") == 3 and page.rstrip().endswith("</html>")
    assert signal.getsignal(sent) == before


def test_a_page_is_closed_when_the_run_is_ended_while_it_is_written(explain, tmp_path, monkeypatch, heard):
    """A signal comes at any moment: also in the middle of an explanation's part of the page."""
    from decompx_fast.result import page

    calls = 0
    html_piece = page._html_piece

    def ended(*arguments):
        nonlocal calls
        calls += 1
        if calls == 12:  # each text has four pieces and some
            os.kill(os.getpid(), signal.SIGHUP)
        return html_piece(*arguments)

    monkeypatch.setattr(page, "_html_piece", ended)
    out = tmp_path / "out.html"
    code, _, err = explain(
        *["a film"] * 9, "--batch-size", 1, "--quiet", "--html", out, "--jsonl", tmp_path / "x.jsonl"
    )
    assert code == 1 and "ended by SIGHUP" in err
    text = (tmp_path / "out.partial.html").read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>") and text.count("</html>") == 1
    assert 0 < text.count("<article") == text.count("</article>") == len(rows_of(tmp_path / "x.jsonl")) - 1
    assert not out.exists()


def test_a_signal_that_is_ignored_stays_so(explain, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        monkeypatch.setattr(job, "linearize", lambda *a, _=job.linearize, **o: (os.kill(os.getpid(), 1), _(*a, **o))[1])
        assert explain("a film", "--quiet") == (0, "", "")
    finally:
        signal.signal(signal.SIGHUP, before)
