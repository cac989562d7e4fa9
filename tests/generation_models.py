"""Tiny language models in float64 with a byte-level tokenizer, for the tests of what they say next."""

from __future__ import annotations

import functools

import models
import torch
from llama_like import widen
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as tokenizer_models
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 300
PROMPT = "The capital of France is"
TEXTS = ("The capital of France is Paris. The capital of England is London.", "one two three four " * 3)

#: Writes turns as many models do, and begins with the beginning of text by itself.
TEMPLATE = (
    "<|end|>{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


@functools.cache
def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2's: no beginning of text, and one token for the end and for padding."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|turn|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|end|>",
        additional_special_tokens=["<|turn|>"],
        chat_template=TEMPLATE,
        model_input_names=["input_ids", "attention_mask"],
    )


def llama(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> nn.Module:
    config = LlamaConfig(
        vocab_size=options.pop("vocab_size", VOCABULARY),
        hidden_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=20,
        num_hidden_layers=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=0,
        **options,
    )
    return _random(LlamaForCausalLM(config), seed, dtype)


def gpt2(seed: int = 0, dtype: torch.dtype = torch.float64, **options) -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_head=4, n_layer=2, n_positions=48, bos_token_id=0, eos_token_id=0, **options
    )
    return _random(GPT2LMHeadModel(config), seed, dtype)


def _random(model: nn.Module, seed: int, dtype: torch.dtype) -> nn.Module:
    model = model.to(dtype).eval()
    models.randomize(model, seed)
    if dtype == torch.float64:
        for module in model.modules():
            widen(module)
    return model


MODELS = {"llama": llama, "gpt2": gpt2}
