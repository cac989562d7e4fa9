"""The method once more, by its definition: NumPy, one input, loops over positions, heads and sources."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from decompx_fast.config import DecompXConfig
from decompx_fast.linearize.layer import (
    Attention,
    Convolution,
    FeedForward,
    Head,
    LinearizedLayer,
    Norm,
    Routed,
    Sublayer,
)

Array = np.ndarray


def array(tensor: torch.Tensor | None, row: bool = False) -> Array | None:
    """As float64; of a batch the first input, if ``row``."""
    if tensor is None:
        return None
    return (tensor[0] if row else tensor).detach().double().numpy()


#: The normal distribution function.
ndtr = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))

ACTIVATIONS = {
    "gelu": lambda z: z * ndtr(z),
    "gelu_tanh": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "quick_gelu": lambda z: z / (1 + np.exp(-1.702 * z)),
    "relu": lambda z: np.maximum(z, 0),
    "relu2": lambda z: np.maximum(z, 0) ** 2,
    "silu": lambda z: z / (1 + np.exp(-z)),
    "tanh": np.tanh,
}


def activation(name: str) -> Callable[[Array], Array]:
    """By its name, or its name and its numbers."""
    kind, *numbers = name.split(":")
    if kind == "softcap":
        cap = float(numbers[0])
        return lambda z: cap * np.tanh(z / cap)
    if kind == "clamped_silu":
        beta, limit = map(float, numbers)
        return lambda z: np.minimum(z, limit) / (1 + np.exp(-beta * np.minimum(z, limit)))
    return ACTIVATIONS[name]


def slope_and_intercept(name: str, z: Array, approximation: str) -> tuple[Array, Array]:
    """The line that stands for an activation at ``z``, which is nowhere 0."""
    act, zero = activation(name), np.zeros_like(z)
    if approximation == "relu":
        return (z > 0).astype(float), zero
    if approximation == "zero_origin":
        return act(z) / z, zero
    if name == "relu":
        slope = (z > 0).astype(float)
    elif name == "gelu":
        slope = ndtr(z) + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    else:
        step = 1e-30  # along the imaginary axis nothing cancels: the derivative to rounding
        slope = np.imag(act(z + 1j * step)) / step
    return slope, act(z) - slope * z


def shares(u: Array, bias: Array, rule: str) -> list[float]:
    """Of each source ``u[k]`` in a bias: section 2.2 of the design."""
    dots = [float(sum(bias * row)) for row in u]
    norms = [float(np.sqrt(sum(row**2))) for row in u]
    weights = {
        "absdot": [abs(dot) for dot in dots],
        "dot": dots,
        "norm": norms,
        "abssim": [abs(dot) / norm if norm > 0 else 0.0 for dot, norm in zip(dots, norms, strict=True)],
        "equal": [float(row.any()) for row in u],
        "cls": [float(k == 0) for k in range(len(u))],
    }[rule]
    if sum(weights) == 0:
        weights = [float(row.any()) for row in u]
    if sum(weights) == 0:
        weights = [1.0] * len(u)
    return [weight / sum(weights) for weight in weights]


def add_bias(u: Array, bias: Array | None, rule: str) -> Array:
    """``u`` ``[k, d]`` of one position."""
    u = u.copy()
    if bias is None or rule == "none":
        return u
    if rule == "bias_token":
        u[-1] += bias
        return u
    return u + np.array(shares(u, bias, rule))[:, None] * bias


class Naive:
    """Decomposes one input; ``x`` is ``[i, k, d]`` throughout."""

    def __init__(self, config: DecompXConfig, sources: list[int]) -> None:
        self.config, self.sources = config, sources

    def start(self, embedding: Array) -> Array:
        extra = self.config.bias == "bias_token"
        x = np.zeros((len(embedding), max(self.sources) + 1 + extra, embedding.shape[1]))
        for i, k in enumerate(self.sources):
            x[i, k] = embedding[i]
        self.x0 = x.copy()  # the embedding once more, for what reads it later
        return x

    def biased(self, x: Array, bias: Array | None, rows: Array | None = None) -> Array:
        """Every position with its share of a bias; ``rows`` or a bias ``[i, d]`` where each has its own."""
        if bias is not None and bias.ndim == 2:
            rows = bias
        each = [bias] * len(x) if rows is None else rows
        return np.stack([add_bias(u, b, self.config.bias) for u, b in zip(x, each, strict=True)])

    def layer(self, x: Array, layer: LinearizedLayer, first: bool) -> Array:
        wide = x
        for sublayer in layer.sublayers:
            op = sublayer.ops[0]
            if op.kind not in ("narrow", "widen"):
                x = self.sublayer(x, sublayer, first, wide)
                continue
            mapped = self.biased(x @ array(op.weight), array(op.bias))
            wide, x = (x, mapped) if op.kind == "narrow" else (wide, wide + mapped)
            x = self.norm(x, sublayer.post_norm) if self.config.ln2 else x
        return x

    def sublayer(self, x: Array, sublayer: Sublayer, first: bool, wide: Array) -> Array:
        config = self.config
        norms = config.ln1 if sublayer.has_attention else config.ln2
        u = wide if sublayer.reads_wide else x
        u = self.norm(u, sublayer.pre_norm) if norms else u
        branch, late = np.zeros_like(x), None
        for op in sublayer.ops:
            if isinstance(op, Attention):
                z, bias = self.attention(u if op.memory is None else self.memory, op, first)
                if config.variant == "paper":
                    z = self.biased(z, bias, bias if np.ndim(bias) == 2 else None)
                else:
                    late = bias
                branch = branch + z
            elif isinstance(op, Convolution):
                branch = branch + self.convolution(op)
            elif config.ffn:
                if op.norm is not None:  # its own, in place of that of all
                    read = self.norm(x, op.norm) if config.ln2 else x
                branch = branch + self.feed_forward(u if op.norm is None else read, op)
        if norms and sublayer.out_norm is not None:
            branch, late = self.norm(self.biased(branch, late), sublayer.out_norm), None
        r = self.biased(x + branch, late, late if np.ndim(late) == 2 else None)
        return self.norm(r, sublayer.post_norm) if norms else r

    def norm(self, x: Array, norm: Norm | None) -> Array:
        if norm is None:
            return x
        std = array(norm.std, row=True)
        out = np.empty_like(x)
        for i, k in np.ndindex(x.shape[:2]):
            centred = x[i, k] - (x[i, k].mean() if norm.centre else 0)
            out[i, k] = centred / std[i] * (1 if norm.weight is None else array(norm.weight))
        return self.biased(out, array(norm.bias))

    def attention(self, x: Array, op: Attention, first: bool) -> tuple[Array, Array | None]:
        if op.hubs is not None:
            return self.attention_with_hubs(x, op, first)
        p, size = op.pattern, op.w_value.shape[1] // op.kv_heads
        query, key = array(p.query, row=True), array(p.key, row=True)
        w_value, w_out = array(op.w_value), array(op.w_out)
        n = query.shape[1]  # of a cross attention, other positions than those that are attended
        shape = (op.heads, n, len(x))
        added = np.zeros(shape) if p.bias is None else np.broadcast_to(array(p.bias, row=True), shape)
        rides = self.config.variant == "released" and first and op.b_value is not None
        sinks, d = None if p.sink is None else array(p.sink), w_out.shape[1]
        z, through = np.zeros((n, x.shape[1], d)), np.zeros(d if sinks is None else (n, d))
        for h in range(op.heads):
            g = h * op.kv_heads // op.heads
            head, group = slice(h * size, (h + 1) * size), slice(g * size, (g + 1) * size)
            values = x @ w_value[:, group]  # [j, k, v]
            b_value = None if op.b_value is None else array(op.b_value)[group]
            if rides:
                for j, k in zip(range(len(x)), self.sources, strict=False):  # an encoder has the first of them
                    values[j, k] = values[j, k] + b_value
            elif b_value is not None and sinks is None:
                through = through + b_value @ w_out[head]
            for i in range(n):
                seen = [j for j in range(len(x)) if not (p.causal and j > i)]
                seen = [j for j in seen if p.window is None or abs(i - j) < p.window]
                logits = np.array([p.scale * query[h, i] @ key[g, j] for j in seen])
                logits = logits if p.softcap is None else p.softcap * np.tanh(logits / p.softcap)
                logits = logits + np.array([added[h, i, j] for j in seen])
                largest = logits.max()  # to take it off changes no weight, and nothing is infinite then
                weights = np.exp(logits - largest)
                weights = weights / (weights.sum() + (0 if sinks is None else np.exp(sinks[h] - largest)))
                for weight, j in zip(weights, seen, strict=True):
                    z[i] = z[i] + weight * values[j] @ w_out[head]
                if sinks is not None and b_value is not None and not rides:
                    through[i] += weights.sum() * b_value @ w_out[head]
        return z, through + (0 if op.b_out is None else array(op.b_out))

    def attention_with_hubs(self, x: Array, op: Attention, first: bool) -> tuple[Array, Array]:
        """Each row by the maps that are its own, of all positions or of its window and the hubs; no grouped heads."""
        where, block = array(op.pattern.hubs.where, row=True), op.pattern.hubs.block
        z, biases = np.zeros_like(x), np.zeros((len(x), x.shape[-1]))
        size = op.w_out.shape[0] // op.heads
        rides = self.config.variant == "released" and first and op.b_value is not None
        for i, h in np.ndindex(len(x), op.heads):
            part, head = op.hubs if where[i] else op, slice(h * size, (h + 1) * size)
            query, key = array(part.pattern.query, row=True)[h, i], array(part.pattern.key, row=True)[h]
            added = np.zeros(len(x)) if part.pattern.bias is None else array(part.pattern.bias, row=True)[0, 0]
            near = [abs(i // block - j // block) <= op.pattern.hubs.radius for j in range(len(x))]
            seen = [j for j in range(len(x)) if where[i] or where[j] or near[j]]
            weights = np.exp([part.pattern.scale * query @ key[j] + added[j] for j in seen])
            w_value, w_out = array(part.w_value)[:, head], array(op.w_out)[head]
            b_value = np.zeros(size) if part.b_value is None else array(part.b_value)[head]
            for weight, j in zip(weights / weights.sum(), seen, strict=True):
                values = x[j] @ w_value  # [k, v]
                if rides:
                    values[self.sources[j]] += b_value
                z[i] = z[i] + weight * values @ w_out
            if not rides:
                biases[i] += b_value @ w_out
        return z, biases + (0 if op.b_out is None else array(op.b_out))

    def feed_forward(self, x: Array, op: FeedForward | Routed) -> Array:
        if isinstance(op, Routed):
            out = np.zeros_like(x)
            for part in op.parts:
                for number, i in enumerate(part.at.tolist()):
                    if i >= len(x):  # of another input
                        continue
                    only = slice(number, number + 1)
                    constants = {name: value[:, only] for name, value in part.network.constants.items()}
                    network = part.network.replace_constants(constants)
                    out[i] += part.weight[number].item() * self.feed_forward(x[i : i + 1], network)[0]
            return out
        zeta = array(op.preactivation, row=True)
        slope, intercept = slope_and_intercept(op.activation, zeta, self.config.activation)
        hidden = self.biased(x @ array(op.w_in), array(op.b_in))
        if op.value is None:
            hidden = self.line(hidden, slope, intercept)
        else:
            value = array(op.value, row=True)
            clamped = value if op.limit is None else np.clip(value, -op.limit, op.limit)
            half = 0.5 if self.config.gate == "half" else 0
            through_value = hidden * (activation(op.activation)(zeta) * clamped / value)[:, None]
            hidden = (1 - half) * through_value
            if half or op.shift:
                gate = self.biased(x @ array(op.w_gate), array(op.b_gate))
                factor = half * clamped + op.shift
                hidden = hidden + self.line(gate, slope * factor, intercept * factor)
        return self.biased(hidden @ array(op.w_out), array(op.b_out))

    def convolution(self, op: Convolution) -> Array:
        weight, bias = array(op.weight), array(op.bias)  # [d_out, d_in / groups, t]
        d_out, size, taps = weight.shape
        u = np.zeros_like(self.x0)
        for i, k, out in np.ndindex(*u.shape[:2], d_out):
            group = out // (d_out // op.groups)
            for tap in range(taps):
                j = i + tap - (taps - 1) // 2
                if 0 <= j < len(u):
                    u[i, k, out] += self.x0[j, k, group * size : (group + 1) * size] @ weight[out, :, tap]
        zeta = array(op.preactivation, row=True)
        slope, intercept = slope_and_intercept(op.activation, zeta, self.config.activation)
        return self.line(self.biased(u, bias), slope, intercept)

    def line(self, x: Array, slope: Array, intercept: Array) -> Array:
        linear = self.config.activation == "linear"
        return self.biased(x * slope[:, None], None, intercept if linear else [None] * len(x))

    def head(self, x: Array, head: Head) -> Array:
        """Scores ``[k, c]``."""
        if head.reading.averaged:
            return sum(self._through(u, head, row) for row, u in enumerate(x)) / len(x)
        return self._through(sum(x[position] for position in head.positions) / len(head.positions), head, 0)

    def _through(self, u: Array, head: Head, row: int) -> Array:
        """The parts ``[k, d]`` of one row that the head reads, through its steps."""
        for step in head.steps:
            if step.weight is not None:
                u = add_bias(u @ array(step.weight), array(step.bias), self.config.bias)
            if step.activation is not None:
                kind = self.config.tanh if step.activation.startswith(("tanh", "softcap")) else self.config.activation
                zeta = array(step.preactivation, row=True)[row]
                slope, intercept = slope_and_intercept(step.activation, zeta, kind)
                u = add_bias(u * slope, intercept if kind == "linear" else None, self.config.bias)
            if step.norm is not None:
                centred = u - u.mean(-1, keepdims=True) if step.norm.centre else u
                gain = 1 if step.norm.weight is None else array(step.norm.weight)
                std = array(step.norm.std, row=True)[row]
                u = add_bias(centred / std * gain, array(step.norm.bias), self.config.bias)
        return u


def decompose(
    linearization, config: DecompXConfig, sources: list[int] | None = None, terms=None
) -> tuple[Array, list[Array]]:
    """Scores ``[k, c]`` of the first input, and the decomposed state after each layer."""
    embedding = array(linearization.embedding, row=True)
    naive = Naive(config, list(range(len(embedding))) if sources is None else sources)
    x, states, encoder = naive.start(embedding), [], linearization.encoder
    if encoder is not None:
        x, decoder = x[: encoder.tokens], x[encoder.tokens :]
    for layer in linearization.layers():
        if encoder is not None and layer.index == encoder.layers:
            naive.memory, x = x, decoder
        x = naive.layer(x, layer, first=layer.index == 0)
        states.append(x)
        output = layer.output
    scores = naive.head(x, linearization.head(output) if terms is None else linearization.head(output, terms))
    if config.bias == "bias_token" and config.bias_token_split is not None:
        scores = add_bias(scores[:-1], scores[-1], config.bias_token_split)
    return scores, states
