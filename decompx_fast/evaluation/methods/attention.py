"""Methods that read the attention weights alone: raw, effective, rollout and flow.

Notation: ``alpha[h,i,j]``, the weights of a layer's heads; ``A = mean_h alpha``. Heads count alike, special tokens are
positions like all others, and the scores are the row of the position that the head reads. No class enters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...linearize.layer import Linearization, LinearizedLayer
from ...optional import import_optional
from ..linearized import attention_of, by_layer, head_values, rollout, score_batches, with_residual
from ..method import Problem, method


@method(
    "raw-attention",
    "Raw attention",
    signed=False,
    about="The last layer's attention weights from the position that the head reads, averaged over the heads.",
)
def raw_attention(problem: Problem) -> list[Tensor]:
    """``A[p,j]`` of the last layer, ``p`` the position that the head reads; sums to 1."""

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        weights, position = by_layer(linearization, _mean_weights)
        return weights[-1][:, position]

    return score_batches(problem, score)


@method(
    "effective-attention",
    "Effective attention",
    signed=False,
    about="Raw attention less its part in the left null space of the value vectors, which no output depends on; "
    "magnitudes, averaged over the heads. For texts no longer than a head is wide, the same as raw attention "
    "(Brunner et al., ICLR 2020).",
)
def effective_attention(problem: Problem) -> list[Tensor]:
    """``mean_h |alpha[h,p] P_h|`` of the last layer, with ``P_h`` the projection onto the column space of ``V_h``.

    ``V_h = x W_V^h + b_V^h`` ``[j, v]`` are the vectors that head ``h`` mixes. A row ``a`` of weights splits into its
    part in the left null space ``{a : a V_h = 0}`` and the part orthogonal to that, ``a P_h``, which yields the same
    output, ``a P_h V_h = a V_h``. With as many independent value vectors as tokens the null space is trivial and
    nothing changes, which is the rule where a text has no more tokens than a head has dimensions.

    Choices: the values hold their bias, as the model mixes them (the paper writes ``T = E W_V H`` and names no
    biases); multiplying by ``W_O^h``, of full row rank in any trained model, leaves the null space as it is; effective
    weights can be negative, and the score is their magnitude.

    Source: Brunner et al., ICLR 2020 (effective attention).
    """

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        *_, last = linearization.layers()
        position = linearization.head(last.output).position
        attention, x = attention_of(last)
        rows = attention.pattern.weights(slice(position, position + 1)).double()  # [b, h, 1, j]
        return (rows @ _column_space(head_values(attention, x))).abs().mean(1)[:, 0]

    return score_batches(problem, score)


def _column_space(values: Tensor) -> Tensor:
    """The projection onto the column space of ``[..., j, v]``: ``[..., j, j]`` float64."""
    left, singular, _ = torch.linalg.svd(values.double(), full_matrices=False)  # [..., j, m], [..., m]
    # What the values' own rounding could have produced counts as zero.
    least = max(values.shape[-2:]) * torch.finfo(values.dtype).eps * singular[..., :1]
    left = left * (singular > least).unsqueeze(-2)
    return left @ left.transpose(-1, -2)


@method(
    "attention-rollout",
    "Attention rollout",
    signed=False,
    about="The product over the layers of 0.5 A + 0.5 I, with A the attention weights averaged over the heads "
    "(Abnar and Zuidema, ACL 2020, section 3).",
)
def attention_rollout(problem: Problem) -> list[Tensor]:
    """The row of the position that the head reads in ``A'_L ... A'_1``, ``A' = 0.5 A + 0.5 I``; sums to 1.

    Source: Abnar and Zuidema, ACL 2020, section 3.
    """

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        return rollout(*by_layer(linearization, lambda layer: with_residual(_mean_weights(layer))))

    return score_batches(problem, score)


@method(
    "attention-flow",
    "Attention flow",
    signed=False,
    about="The largest flow from the position that the head reads down to each token, in a network with a node for "
    "each position of each layer and capacities 0.5 A + 0.5 I (Abnar and Zuidema, ACL 2020, section 3).",
    needs=("scipy",),
)
def attention_flow(problem: Problem) -> list[Tensor]:
    """Maximum flow in the graph of layers, for one token after the other; each at most 1, together more than 1.

    An edge leads from position ``i`` above a layer to ``j`` below it and carries at most ``0.5 A[i,j] + 0.5 [i = j]``.
    Flows are not normalised over the tokens, and exact to about 1e-7.

    Source: Abnar and Zuidema, ACL 2020, section 3.
    """

    def score(linearization: Linearization, classes: Tensor) -> Tensor:
        capacities, position = by_layer(linearization, lambda layer: with_residual(_mean_weights(layer)))
        texts = torch.stack(capacities, 1).double().cpu()  # [b, layer, i, j]
        return torch.stack([_max_flows(text, position) for text in texts])

    return score_batches(problem, score)


#: Capacities are rounded to multiples of 1 / FLOW_UNIT: the algorithm works on whole numbers of 32 bits.
FLOW_UNIT = 2**30


def _max_flows(capacities: Tensor, position: int) -> Tensor:
    """``[j]``: the maximum flow from ``position`` above the last layer to each position below the first.

    Args:
        capacities: ``[layer, i, j]``, from position ``i`` above a layer to ``j`` below it; the row of ``position`` in
            the last layer sums to 1, so that no flow exceeds 1.
        position: where the flow starts.
    """
    sparse = import_optional("scipy.sparse", "attention-flow")
    maximum_flow = import_optional("scipy.sparse.csgraph", "attention-flow").maximum_flow
    layers, n, _ = capacities.shape
    whole = (capacities * FLOW_UNIT).round().int()
    # Node l n + i is position i above layer l - 1, so the layers are the blocks below the diagonal.
    above = torch.arange(n, (layers + 1) * n).view(layers, n, 1).expand_as(whole)
    below = torch.arange(layers * n).view(layers, 1, n).expand_as(whole)
    nodes = (layers + 1) * n
    edges = (whole.flatten().numpy(), (above.flatten().numpy(), below.flatten().numpy()))
    graph = sparse.csr_array(edges, shape=(nodes, nodes))
    source = layers * n + position
    found = [maximum_flow(graph, source, j).flow_value / FLOW_UNIT for j in range(n)]
    return torch.tensor(found, dtype=torch.float64)


def _mean_weights(layer: LinearizedLayer) -> Tensor:
    """``A``, ``[b, i, j]``."""
    return attention_of(layer)[0].pattern.weights().mean(1)
