"""Methods that read the vectors which attention mixes: value-weighted norms, GlobEnc, ALTI, value zeroing.

Each measures, layer by layer, how much position ``i`` after a layer (or a part of it) owes to position ``j`` before it,
and multiplies the layers' matrices (rollout); the scores are the row of the position that the head reads. Common to
all, in the notation of a post-norm layer:

    f_h(x) = (x W_V^h + b_V^h) W_O^h        Z[i,j] = sum_h alpha[h,i,j] f_h(x[j])        R[i,j] = Z[i,j] + [i = j] x[i]

with the attention weights ``alpha`` and the statistics of norms those of the true forward pass. The value bias follows
the attention weights; other biases (``b_O``, those of norms and of the feed-forward network) belong to no position and
are left out. Special tokens are positions like all others. No class enters, and no head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...config import DecompXConfig
from ...engines import reference
from ...errors import UnsupportedModelError
from ...linearize.evaluate import linearize_layer
from ...linearize.layer import Linearization, LinearizedLayer, StateMap
from ...linearize.linearization import specification
from ...linearize.spec import LayerSpec, NormSpec, ScaleSpec
from ..linearized import (
    attention_of,
    by_layer,
    head_values,
    normalize_rows,
    refuse_convolutions,
    rollout,
    score_batches,
    with_residual,
)
from ..method import Problem, method


@method(
    "value-norms",
    "Value norms",
    signed=False,
    about="Norms of the attention-weighted value vectors, |sum_h alpha f_h(x)|, each row normalised, averaged with the "
    "identity for the residual connection, and rolled out (Kobayashi et al., EMNLP 2020).",
)
def value_norms(problem: Problem) -> list[Tensor]:
    """``|Z[i,j]|`` of each layer, the norm of the attention-weighted value vector.

    The paper reads single layers. To aggregate them, rows are normalised to sum 1 and half of a state is taken to
    come through the residual connection, as attention rollout does with attention weights.

    Source: Kobayashi et al., EMNLP 2020 (the norm); Abnar and Zuidema, ACL 2020, section 3 (the aggregation).
    """

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        return rollout(
            *by_layer(linearization, lambda layer: with_residual(normalize_rows(_mixed(layer).norm(dim=-1))))
        )

    return score_batches(problem, score)


@method(
    "value-norms-residual-ln",
    "Value norms, residual and LayerNorm",
    signed=False,
    about="Norms of what each position contributes to the attention block's output, residual connection and LayerNorm "
    "included, each row normalised, rolled out (Kobayashi et al., EMNLP 2021).",
)
def value_norms_residual_ln(problem: Problem) -> list[Tensor]:
    """``|(R[i,j] - mean_d R[i,j]) / s1[i] * gamma1|`` of each layer.

    The paper reads single layers; here their matrices are normalised by rows and multiplied. The residual connection
    is in them, so that no identity is added.

    Source: Kobayashi et al., EMNLP 2021.
    """

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        return rollout(*by_layer(linearization, lambda layer: normalize_rows(_block_parts(layer).norm(dim=-1))))

    return score_batches(problem, score)


@method(
    "globenc",
    "GlobEnc",
    signed=False,
    about="Norms of what each position contributes to the layer's output through attention, both residual connections "
    "and both LayerNorms, without the feed-forward network, each row normalised, rolled out "
    "(Modarressi et al., NAACL 2022).",
)
def globenc(problem: Problem) -> list[Tensor]:
    """``|LN2-part of LN1-part of R[i,j]|``, the statistics of LN2 those of the true state with the FFN in it.

    Of the second part of the layer the residual connection alone is followed, so that what LN1 gives reaches LN2
    unchanged. The residual connections are in the norms, so that no identity is added. The authors' code of DecompX
    has the same rollout without the normalisation of rows, by which a position's total norm would weigh as well.

    Source: Modarressi et al., NAACL 2022.
    """
    return score_batches(problem, lambda linearization, classes: _globenc(linearization, ffn=False))


@method(
    "globenc-ffn",
    "GlobEnc with FFN",
    signed=False,
    about="GlobEnc with the feed-forward network as well, its activation replaced by the line through the origin and "
    "the true value (Modarressi et al., ACL 2023, equations 8 to 10).",
)
def globenc_ffn(problem: Problem) -> list[Tensor]:
    """GlobEnc where each part ``Y[i,j]`` after LN1 also passes the FFN: ``Y + (theta[i] * (Y W_1)) W_2`` reaches LN2.

    The FFN's biases are left out like all others, but are in the true state that gives ``theta``.

    Source: Modarressi et al., NAACL 2022 (the rest); ACL 2023, equations 8 to 10 (the FFN).
    """
    return score_batches(problem, lambda linearization, classes: _globenc(linearization, ffn=True))


def _globenc(linearization: Linearization, *, ffn: bool) -> Tensor:
    """The reference engine's own rollout of the norms ``|X'[i,k]|`` of each layer, rows normalised."""
    config = DecompXConfig(
        variant="released", bias="none", head=False, aggregation="rollout", row_normalize=True, ffn=ffn
    )
    return reference.attribute(linearization, config).scores[..., 0]


@method(
    "alti",
    "ALTI",
    signed=False,
    about="How near each position's contribution to the attention block's output is to that output in the L1 norm, "
    "normalised and rolled out (Ferrando et al., EMNLP 2022, equations 7 and 8).",
)
def alti(problem: Problem) -> list[Tensor]:
    """Aggregation of Layer-wise Token-to-token Interactions.

    With ``T[i,j] = (R[i,j] - mean_d R[i,j]) / s1[i] * gamma1`` and ``y[i]`` the true output of the attention block
    (after LayerNorm, its biases included),

        C[i,j] = max(0, |y[i]|_1 - |y[i] - T[i,j]|_1) / sum_k max(0, |y[i]|_1 - |y[i] - T[i,k]|_1)

    and the matrices ``C`` of the layers are multiplied; the residual connection is in them.

    Source: Ferrando et al., EMNLP 2022, equations 7 and 8; that ``y`` holds the biases: the authors' code.
    """

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        return rollout(*by_layer(linearization, lambda layer: normalize_rows(_proximity(layer))))

    return score_batches(problem, score)


def _block_output(layer: LinearizedLayer) -> Tensor:
    """The true state after the sublayer with the attention, ``[b, i, d]``: the next one's input."""
    index = next(n for n, sublayer in enumerate(layer.sublayers) if sublayer.has_attention)
    after = layer.sublayers[index + 1 :]
    y = after[0].input if after else layer.output
    assert y is not None, "a linearised model keeps its states"
    return y


def _proximity(layer: LinearizedLayer) -> Tensor:
    """``max(0, |y[i]|_1 - |y[i] - T[i,j]|_1)``, ``[b, i, j]``."""
    y = _block_output(layer).unsqueeze(2)
    return (y.norm(p=1, dim=-1) - (y - _block_parts(layer)).norm(p=1, dim=-1)).clamp_min(0)


@method(
    "value-zeroing",
    "Value zeroing",
    signed=False,
    about="How far the output of a layer at each position turns (cosine distance) when one position's value vector is "
    "set to zero in that layer, each row normalised, rolled out (Mohebbi et al., EACL 2023).",
)
def value_zeroing(problem: Problem) -> list[Tensor]:
    """``C[i,j] = 1 - cos(x'[i], x'[i] without the value of j)``, each layer on its true input.

    The value vector of ``j``, bias included, is zero in all heads of this one layer while the attention weights stay;
    everything after it in the layer is computed anew, LayerNorm statistics included. Rows are normalised to sum 1 and
    the layers multiplied; the residual connection is in the outputs, so no identity is added.

    Raises:
        UnsupportedModelError: for layers with attention after their first sublayer.

    Source: Mohebbi et al., EACL 2023; that rows are normalised and no identity is added: the authors' code.
    """
    layers = specification(problem.model).layers

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        return rollout(*by_layer(linearization, lambda layer: normalize_rows(_distances(layer, layers[layer.index]))))

    return score_batches(problem, score)


def _distances(layer: LinearizedLayer, spec: LayerSpec) -> Tensor:
    """``[b, i, j]`` float64: how far the output at ``i`` turns without the value of ``j``.

    Args:
        layer: on its true input.
        spec: the same layer as weights, to compute it on other states.
    """
    first, *rest = layer.sublayers
    if not first.has_attention or any(sublayer.has_attention for sublayer in rest):
        raise UnsupportedModelError(
            f"layer {layer.index} has attention elsewhere than at its start: value zeroing needs it there alone"
        )
    refuse_convolutions(spec, "value zeroing")
    x, (_, u) = layer.input, attention_of(layer)
    branch = torch.stack([op(u) for op in first.ops if not isinstance(op, StateMap)]).sum(0)  # refused above
    branch = branch.unsqueeze(2) - _mixed(layer)  # [b, i, j, d]
    state = _norm(spec[0].post_norm, x.unsqueeze(2) + _norm(spec[0].out_norm, branch))
    # All that follows treats each position on its own, so that the pairs (i, j) can pass for positions.
    changed = linearize_layer(spec[1:], layer.index, state.flatten(1, 2)).output.view_as(state)
    return (1 - F.cosine_similarity(changed.double(), layer.output.double().unsqueeze(2), dim=-1)).clamp_min(0)


def _norm(spec: NormSpec | ScaleSpec | None, x: Tensor) -> Tensor:
    """A LayerNorm or RMSNorm with the statistics of ``x`` itself."""
    if spec is None or isinstance(spec, ScaleSpec):
        return x if spec is None else x * spec.factor
    weight = None if spec.weight is None else spec.weight.to(x.dtype)
    if not spec.centre:
        y = F.rms_norm(x, x.shape[-1:], weight, spec.eps)
        return y if spec.bias is None else y + spec.bias.to(x.dtype)
    bias = None if spec.bias is None else spec.bias.to(x.dtype)
    return F.layer_norm(x, x.shape[-1:], weight, bias, spec.eps)


def _mixed(layer: LinearizedLayer) -> Tensor:
    """``Z[i,j] = sum_h alpha[h,i,j] f_h(x[j])``, ``[b, i, j, d]``."""
    attention, x = attention_of(layer)
    w_out = attention.w_out.unflatten(0, (attention.heads, -1))  # [h, v, d]
    transformed = head_values(attention, x) @ w_out  # [b, h, j, d]
    return torch.einsum("bhij,bhjd->bijd", attention.pattern.weights(), transformed)


def _block_parts(layer: LinearizedLayer) -> Tensor:
    """What each position contributes to the attention block's output, its norms' biases apart, ``[b, i, j, d]``."""
    block = next(sublayer for sublayer in layer.sublayers if sublayer.has_attention)
    parts = _mixed(layer)
    if block.out_norm is not None:
        parts = block.out_norm.linear(parts)
    assert block.input is not None, "a linearised model keeps its states"
    parts.diagonal(dim1=1, dim2=2).add_(block.input.transpose(1, 2))  # the diagonal is [b, d, i]
    return parts if block.post_norm is None else block.post_norm.linear(parts)
