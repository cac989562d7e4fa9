"""Explainers in processes that were forked, where OpenMP's threads are not there: they compute, and wait for nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import evaluation_samples
import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Texts long enough that PyTorch's operators begin threads, in the parent, and would use them in the child.
PROGRAM = """
import os, pickle, signal, sys, torch
from decompx_fast import DecompX

torch.set_num_threads(2)
text = " ".join(["a sharp film, warm and not dull"] * 7)
explainer = DecompX.from_pretrained(sys.argv[1], bias=sys.argv[2])
encoder = DecompX(explainer.model.bert, explainer.tokenizer, pooling="mean")
own, pair = explainer(text).scores, encoder.similarity(text, text).scores
large = torch.ones(1 << 20).exp()  # by OpenMP, whatever the model did
child = os.fork()
if child == 0:
    signal.alarm(100)
    assert torch.allclose(explainer(text).scores, own, rtol=1e-4, atol=1e-6)
    assert torch.allclose(encoder.similarity(text, text).scores, pair, rtol=1e-4, atol=1e-6)
    assert torch.allclose(pickle.loads(pickle.dumps(explainer))(text).scores, own, rtol=1e-4, atol=1e-6)
    assert torch.equal(large.log().exp().round(), large.round())  # what comes after is not left waiting either
    os._exit(7)
_, status = os.waitpid(child, 0)
assert torch.get_num_threads() == 2, "the parent's threads are its own affair"
sys.exit(0 if os.waitstatus_to_exitcode(status) == 7 else f"the child ended with {status}")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("rule", ["none", "absdot"])
def test_an_explainer_computes_in_a_process_that_was_forked(tmp_path, rule):
    model = evaluation_samples.save_classifier(tmp_path)
    places = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    ask = [sys.executable, "-c", PROGRAM, model, rule]
    found = subprocess.run(ask, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
