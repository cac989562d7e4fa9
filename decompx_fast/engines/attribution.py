"""What an engine returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class SiteShare:
    """What the biases of one place add to each class, where a rule keeps them apart from the tokens.

    Attributes:
        layer: index of the layer, or -1 for the head.
        place: such as ``"attention"``, ``"ln1"``, ``"ffn.in"``, ``"ffn.out"``, ``"ln2"``, ``"head.0"``; in a decoder
            ``"cross_attention"`` and ``"cross_ln"`` too.
        value: ``[b, c]``.
    """

    layer: int
    place: str
    value: Tensor


@dataclass(frozen=True)
class Attribution:
    """Scores of a batch of equally long inputs, for every class.

    Attributes:
        scores: ``[b, k, c]``, with a head; ``[b, k, 1]`` norms at the head's position without one.
        bias_token: ``[b, c]``, the biases collected apart, or ``None`` where the rule shares them.
        gap: ``[b]``, the largest difference between what the parts add up to and the true value: the model's logits
            with a head, the hidden state without one. In the units of those.
        stages: ``"name.layer"`` to ``[b, i, k]`` or ``[b, i, k, d]`` (``pooler``: ``[b, k]`` or ``[b, k, d]``).
        sites: bias shares by place, summing with the scores to the logits; ``None`` where the engine does not tell.
        components: what flows from the state of each token before a sublayer, by the way that it takes:
            ``"attention.LAYER"`` (its value path) and ``"attention_residual.LAYER"``, ``"ffn.LAYER"`` and
            ``"ffn_residual.LAYER"``, each ``[b, k, c]``. The ways of one sublayer, summed over the tokens, and the
            sites from that sublayer on, sum to the logit. Of a decoder ``"cross_attention.LAYER"`` is what flows from
            the encoder's tokens by the memory, and ``"cross_attention_residual.LAYER"`` what flows past it. The ways of
            its sublayers sum to the logit with what flows from the memory later; those of the encoder's with the scores
            of the decoder's tokens.
        expected_error: ``[b]``, how wrong the scores probably are by rounding, relative to the largest
            (:class:`.accuracy.Conditioning`).
    """

    scores: Tensor
    bias_token: Tensor | None
    gap: Tensor
    stages: Mapping[str, Tensor] = field(default_factory=dict)
    sites: tuple[SiteShare, ...] | None = None
    components: Mapping[str, Tensor] = field(default_factory=dict)
    expected_error: Tensor | None = None
