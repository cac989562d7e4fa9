"""What the adjoint engine is measured on: random weights in the shapes of well-known models, and their floors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

from decompx_fast.config import DecompXConfig

D, HEADS, CLASSES, VOCABULARY = 768, 12, 2, 1000

#: ModernBERT's window as a whole, and how far its layers with global attention are apart.
LOCAL, GLOBAL_EVERY = 128, 3


def bert(positions: int, layers: int) -> torch.nn.Module:
    config = BertConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        intermediate_size=3072,
        num_hidden_layers=layers,
        max_position_embeddings=positions,
        vocab_size=VOCABULARY,
        num_labels=CLASSES,
    )
    return BertForSequenceClassification(config)


def modernbert(positions: int, layers: int) -> torch.nn.Module:
    config = ModernBertConfig(
        hidden_size=D,
        num_attention_heads=HEADS,
        intermediate_size=1152,
        num_hidden_layers=layers,
        max_position_embeddings=positions,
        vocab_size=VOCABULARY,
        num_labels=CLASSES,
        local_attention=LOCAL,
        global_attn_every_n_layers=GLOBAL_EVERY,
        **{f"{name}_token_id": number for number, name in enumerate(("pad", "bos", "eos", "cls", "sep"))},
    )
    return ModernBertForSequenceClassification(config)


@dataclass(frozen=True)
class Subject:
    """A kind of model.

    Attributes:
        title: of the table.
        make: from positions and layers.
        config: what is asked of the engine.
        network: products of ``d`` and a network's hidden size, as multiples of ``d^2``.
        window: how many positions those of a local layer attend; ``None`` where all are global.
    """

    title: str
    make: Callable[[int, int], torch.nn.Module]
    config: DecompXConfig
    network: float
    window: int | None = None

    def build(self, positions: int, layers: int, device: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = self.make(positions, layers).to(device).eval()
        return model, {"input_ids": torch.randint(5, VOCABULARY, (1, positions), device=device)}

    def attended(self, n: int, layer: int) -> int:
        """How many positions a position of this layer attends."""
        local = self.window is not None and layer % GLOBAL_EVERY
        return min(self.window or n, n) if local else n

    def forward_flops(self, n: int, layers: int) -> float:
        """Of the model; in a local layer, what the window needs, whatever the model computes."""
        return sum(2 * n * D**2 * (4 + self.network) + 4 * n * self.attended(n, layer) * D for layer in range(layers))

    def least_flops(self, n: int, layers: int, directions: int) -> float:
        """Multiplications and additions that no linear-memory pull-back can do without.

        Forward: the user's model runs once, and its products are not computed a second time. Back: attention weights
        once more, then per direction the transposes; of the last layer, of which the head reads one row, only that of
        the values.
        """
        back = 0.0
        for layer in range(layers - 1):
            weights = 2 * n * self.attended(n, layer) * D
            back += weights + directions * (2 * n * D**2 * (2 + self.network) + weights)
        return self.forward_flops(n, layers) + back + directions * 2 * n * D**2


SUBJECTS = {
    "bert": Subject("BERT", bert, DecompXConfig(bias="bias_token"), network=2 * 3072 / D),
    "modernbert": Subject("ModernBERT", modernbert, DecompXConfig(bias="none"), 3 * 1152 / D, LOCAL + 1),
}
