"""Models that compare texts and pictures: two encoders, a vector from each, and what is made of their cosine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

from torch import Tensor, nn

from .model_run import check_adds_nothing

#: What an encoder reads.
Reads = Literal["text", "picture"]


class Tower(nn.Module):
    """One of the two encoders, with the map to the vectors that are compared.

    Args:
        encoder: gives a pooled state for an input.
        projection: a linear map, or ``None``.
        reads: what the input is.
    """

    def __init__(self, encoder: nn.Module, projection: nn.Module | None, reads: Reads) -> None:
        super().__init__()
        self.encoder, self.projection, self.reads = encoder, projection, reads
        self.config: Any = encoder.config

    def forward(self, **inputs: Any) -> SimpleNamespace:
        """The vectors ``[b, d]``, before they are normalised, as ``logits``."""
        x = self.encoder(**inputs).pooler_output
        return SimpleNamespace(logits=x if self.projection is None else self.projection(x))


class TwoTowers(nn.Module):
    """A model of transformers that compares a text with a picture, taken apart.

    Its logit is ``cos * exp(scale) + bias``; where it has no bias, that is zero.

    Args:
        model: such as ``CLIPModel`` or ``SiglipModel``; its modules are used as they are.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config
        self.text = Tower(model.text_model, getattr(model, "text_projection", None), "text")
        self.picture = Tower(model.vision_model, getattr(model, "visual_projection", None), "picture")

    def towers(self) -> tuple[Tower, Tower]:
        """That of texts and that of pictures.

        Raises:
            UnsupportedModelError: if the model computes more than its modules, which are run by themselves.
        """
        check_adds_nothing(self.model, "encoders are")
        return self.text, self.picture

    @property
    def line(self) -> tuple[float, float]:
        """Factor and summand that make the logit of the cosine."""
        bias: Tensor | None = getattr(self.model, "logit_bias", None)
        factor = self.model.logit_scale.detach().double().exp()
        return factor.item(), 0.0 if bias is None else bias.detach().item()
