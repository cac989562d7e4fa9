"""What an explanation will cost, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from ..linearize.layer import Attention, FeedForward, Linearization, LinearizedLayer


@dataclass(frozen=True)
class ModelShape:
    layers: int
    d: int
    f: int
    heads: int
    kv_heads: int
    head_size: int

    @classmethod
    def from_linearization(cls, linearization: Linearization, layer: LinearizedLayer) -> ModelShape:
        attentions = [op for s in layer.sublayers for op in s.ops if isinstance(op, Attention)]
        networks = [op for s in layer.sublayers for op in s.ops if isinstance(op, FeedForward)]
        return cls(
            linearization.num_layers,
            linearization.embedding.shape[-1],
            max((op.w_in.shape[1] for op in networks), default=0),
            max((op.heads for op in attentions), default=1),
            max((op.kv_heads for op in attentions), default=1),
            max((op.w_out.shape[0] // op.heads for op in attentions), default=1),
        )


@dataclass(frozen=True)
class Plan:
    path: str
    block_sources: int
    block_rows: int
    block_alpha_rows: int
    buffer_numel: int

    def check(self) -> None:
        pass


def plan(shape, n_tokens, n_sources, batch, *, dtype, config, path, workspace_bytes, device) -> Plan:
    size = dtype.itemsize
    budget = (workspace_bytes or 64 << 20) // size
    n_all = n_sources + (config.bias == "bias_token")
    per_source = batch * n_tokens * 2 * max(shape.d, shape.heads * shape.head_size)
    per_row = n_all * (3 * shape.d + 2 * shape.f)
    ks = max(1, min(n_all, budget // per_source))
    ps = max(1, min(batch * n_tokens, budget // per_row))
    alpha = max(1, min(n_tokens, budget // (3 * batch * shape.heads * n_tokens)))
    return Plan("direct", ks, ps, alpha, max(ks * per_source, ps * per_row))
