"""Models that accelerate has spread over devices, offloaded, or merely loaded: refused with the way out, or exact."""

from __future__ import annotations

import pytest
import torch
from generation_models import PROMPT, byte_level, llama
from models import classifier, token_ids
from transformers import AutoModelForCausalLM

from decompx_fast import DecompX
from decompx_fast.errors import InputError, UnsupportedModelError

accelerate = pytest.importorskip("accelerate")

CPU = torch.device("cpu")


def test_offloaded_models_are_refused_with_the_way_out(tmp_path):
    whole = "whole on one device, but its parameters are on: meta. Load it without device_map"
    for offloaded in (
        accelerate.cpu_offload(llama(dtype=torch.float32), execution_device=CPU),
        accelerate.disk_offload(llama(dtype=torch.float32), tmp_path, execution_device=CPU),
    ):
        for asked in ({}, {"generate": 2}):
            with pytest.raises(InputError, match=whole):
                DecompX(offloaded, byte_level()).explain(PROMPT, **asked)


def test_a_model_that_is_partly_offloaded_is_refused(tmp_path):
    parts = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
    places = parts | {"model.rotary_emb": "cpu", "lm_head": "cpu"}
    split = accelerate.dispatch_model(
        llama(dtype=torch.float32), places, offload_dir=tmp_path, main_device="cpu", force_hooks=True
    )
    with pytest.raises(InputError, match="parameters are on: cpu, meta. Load it without device_map"):
        DecompX(split, byte_level()).explain(PROMPT)


def test_hooks_of_accelerate_are_named_and_can_be_taken_off():
    model = llama(dtype=torch.float32)
    expected = DecompX(model, byte_level()).explain(PROMPT)
    accelerate.hooks.add_hook_to_module(model, accelerate.hooks.AlignDevicesHook(CPU, io_same_device=True))
    with pytest.raises(UnsupportedModelError, match=r"accelerate runs this LlamaForCausalLM .*remove_hook_from_module"):
        DecompX(model, byte_level()).explain(PROMPT)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert torch.equal(DecompX(model, byte_level()).explain(PROMPT).scores, expected.scores)


def test_hooks_that_are_run_change_nothing():
    """Where the whole model is called, what moves its inputs to where they are is harmless."""
    model, ids = classifier(), token_ids()
    expected = DecompX(model).explain(ids)
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert torch.equal(DecompX(model).explain(ids)[0].scores, expected[0].scores)


@pytest.mark.parametrize("device_map", ["auto", "cpu"])
def test_a_device_map_that_ends_on_one_device_is_exact(tmp_path, device_map):
    model = llama(dtype=torch.float32)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=device_map, dtype=torch.float32)
    expected = DecompX(model, byte_level()).explain(PROMPT)
    assert torch.equal(DecompX(loaded, byte_level()).explain(PROMPT).scores, expected.scores)
