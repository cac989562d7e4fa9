"""Tiny random encoder-decoders in float64, of every family and head, and inputs for them."""

from __future__ import annotations

import functools

import models
import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

#: Words of the tokenizer, special ones first; two are codes of languages.
WORDS = (
    "<pad> </s> <s> <unk> de fr a b c the cat sat on mat who where der die das hund katze sitzt auf matte und wo wer "
    "eine ein . , x y z one two three four five"
).split()
VOCABULARY = len(WORDS)
PAD, END, GERMAN = 0, 1, 4

T5 = {
    "d_model": 12,
    "d_kv": 5,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 9,
    "decoder_start_token_id": PAD,
}
BART = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 14,
    "max_position_embeddings": 40,
    "decoder_start_token_id": END,
    "forced_eos_token_id": None,
}
COMMON = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 2, "num_labels": 3}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

#: Of each class in transformers, less its prefix: options beside :data:`COMMON`.
CASES: dict[str, tuple[str, dict]] = {
    "t5": ("T5", T5 | {"feed_forward_proj": "relu"}),
    "flan_t5": ("T5", T5 | GATED),
    "mt5": ("MT5", T5 | GATED),
    "umt5": ("UMT5", T5 | GATED),
    "bart": ("Bart", BART),
    "blenderbot": ("Blenderbot", BART),
    "blenderbot_small": ("BlenderbotSmall", BART | {"activation_function": "relu"}),
    "m2m100": ("M2M100", BART | {"activation_function": "relu"}),
    "marian": ("Marian", BART | {"activation_function": "swish"}),
    "mbart": ("MBart", BART),
    "pegasus": ("Pegasus", BART | {"activation_function": "relu"}),
    "plbart": ("PLBart", BART),
}
T5_LIKE = ("t5", "flan_t5", "mt5", "umt5")
WRITING = {"Marian": "MTModel"}

#: Cases that take some steps in float32 whatever their dtype: they are compared no more closely with their models.
IN_FLOAT32 = {"umt5": 1e-5}


def model_of(
    case: str, head: str | None = None, *, seed: int = 0, dtype: torch.dtype = torch.float64, **more
) -> nn.Module:
    """In eval mode; every weight random, no bias zero and no norm weight one. In float64 norms compute in it too."""
    prefix, options = CASES[case]
    name = prefix + (WRITING.get(prefix, "ForConditionalGeneration") if head is None else head)
    own = {"num_labels": 2} if name.endswith("QuestionAnswering") else {}
    config = getattr(transformers, f"{prefix}Config")(**(COMMON | options | own | more))
    plain = {"attn_implementation": "eager"} if prefix == "UMT5" else {}  # refused otherwise in some versions
    model = getattr(transformers, name)._from_config(config, **plain).to(dtype)
    models.randomized(model, seed)
    for path, buffer in model.named_buffers():
        if path.endswith("final_logits_bias"):
            buffer.copy_(torch.linspace(-0.5, 0.5, buffer.shape[-1]))
    if dtype == torch.float64:
        for module in model.modules():
            if type(module).__name__ in ("T5LayerNorm", "MT5LayerNorm", "UMT5LayerNorm"):
                module.__class__ = type(type(module).__name__, (type(module),), {"forward": _rms})
    return model.eval()


def _rms(self, x: Tensor) -> Tensor:
    return self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()


def inputs(read: int = 7, written: int = 4, *, b: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Ids for the encoder and the decoder, none of them special but the decoder's first."""
    generator = torch.Generator().manual_seed(seed)
    ids, fed = (torch.randint(6, VOCABULARY, (b, n), generator=generator) for n in (read, written))
    fed[:, 0] = END
    return {"input_ids": ids, "decoder_input_ids": fed}


@functools.cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Of whole words, that ends texts as T5's does."""
    words = Tokenizer(tokenizer_models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", bos_token="<s>", unk_token="<unk>"
    )
