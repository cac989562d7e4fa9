"""What happens between the first layer and the last, as plots: who holds what of whom, and which parts carry it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import InputError
from ..optional import import_optional
from .display import labels_with_blocks, printable
from .fonts import drawable
from .plot import check_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .explanation import Explanation
    from .kinds import Target

#: The parts of a layer, as :meth:`Explanation.components` names them, in the order of the forward pass.
PARTS = ("attention", "attention_residual", "cross_attention", "cross_attention_residual", "ffn", "ffn_residual")

#: Tokens that have a stripe of their own in a river.
RIVER_TOKENS = 8


def layer_norms(explanation: Explanation, stage: str = "encoder") -> dict[int, torch.Tensor]:
    """For each layer how long the part of each source is in the state of each position: ``[i, k]``.

    Args:
        explanation: made with ``stages=(stage,)``.
        stage: ``"encoder"``, a layer's output, or another of ``DecompXConfig.stages``.

    Raises:
        InputError: if it was made without that stage.
    """
    found = {}
    for name, value in explanation.stages.items():
        if match := re.fullmatch(rf"{re.escape(stage)}\.(\d+)", name):
            found[int(match[1])] = value.norm(dim=-1) if value.ndim == 3 else value
    if not found:
        have = sorted({name.partition(".")[0] for name in explanation.stages})
        raise InputError(
            f"this explanation has no stage {stage!r}, only {', '.join(have) or 'none'}: explain with "
            f"stages=({stage!r},), stage_output='norm'."
        )
    return dict(sorted(found.items()))


def component_totals(explanation: Explanation, target: Target = None) -> dict[int, dict[str, float]]:
    """For each layer how much of a target goes through each part, over all sources.

    Raises:
        InputError: if the engine does not tell.
    """
    column = explanation.column(target)
    found: dict[int, dict[str, float]] = {}
    for name, value in explanation.components().items():
        part, _, layer = name.rpartition(".")
        found.setdefault(int(layer), {})[part] = float(value[:, column].double().sum())
    return {layer: {part: of[part] for part in PARTS if part in of} for layer, of in sorted(found.items())}


def bias_totals(explanation: Explanation, target: Target = None) -> dict[int, float]:
    """What the biases of each layer add to a target, and those of the head (-1), where the engine tells."""
    column = explanation.column(target)
    found: dict[int, float] = {}
    for site in explanation.bias_sites or ():
        found[site.layer] = found.get(site.layer, 0.0) + float(site.value[column])
    return found


def river(explanation: Explanation, target: Target = None) -> torch.Tensor:
    """What of a target each token's state carries before each layer, and before the last network: ``[layers + 1, k]``.

    Before the first layer that is the token's score; at the end all of it is at the position that the head reads. From
    one to the next the sum grows by what the biases between them add.

    Raises:
        InputError: if the engine does not tell.
    """
    column, shares = explanation.column(target), explanation.components()
    layers = sorted({int(name.rpartition(".")[2]) for name in shares})

    def state(layer: int, sublayers: Sequence[str]) -> torch.Tensor:
        for part in sublayers:
            own = [shares[f"{name}.{layer}"] for name in (part, f"{part}_residual") if f"{name}.{layer}" in shares]
            if own:
                return torch.stack([value[:, column].double() for value in own]).sum(0)
        raise InputError(f"this explanation has no components of layer {layer}.")

    before = [state(layer, ("attention", "cross_attention", "ffn")) for layer in layers]
    return torch.stack([*before, state(layers[-1], ("ffn", "cross_attention", "attention"))])


def river_stripes(explanation: Explanation, target: Target, top: int) -> tuple[list[str], torch.Tensor]:
    """A river in stripes, ``[stripe, layers + 1]``: the tokens that carry most anywhere, by name, and the rest."""
    mass, labels = river(explanation, target), labels_with_blocks(explanation)
    shown = sorted(mass.abs().amax(0).topk(min(top, mass.shape[1])).indices.tolist())
    others = [k for k in range(mass.shape[1]) if k not in shown]
    names = [f"{labels[k]} #{k}" for k in shown] + ([f"{len(others)} others"] if others else [])
    stripes = [mass[:, k] for k in shown] + ([mass[:, others].sum(1)] if others else [])
    return names, torch.stack(stripes)


def river_places(count: int) -> list[str]:
    """Where a river of so many states is looked at."""
    return ["input", *(f"layer {layer}" for layer in range(1, count - 1)), "head"]


def plot_layers(explanation: Explanation, stage: str = "encoder", *, columns: int = 3) -> Figure:
    """Heat maps of token to token: how long the part of each source is in each position's state, layer by layer.

    Args:
        explanation: made with ``stages=(stage,), stage_output="norm"``.
        stage: as for :func:`layer_norms`.
        columns: so many beside one another.

    Raises:
        InputError: if it was made without that stage, or for ``columns`` below 1.
        MissingPackageError: if matplotlib is not installed.
    """
    if columns < 1:
        raise InputError(f"columns must be 1 or more, got {columns}.")
    norms = layer_norms(explanation, stage)
    pyplot = import_optional("matplotlib.pyplot", "plot_layers()")
    labels, families = drawable(labels_with_blocks(explanation))
    columns = min(columns, len(norms))
    rows = -(-len(norms) // columns)
    side = 0.8 + 0.16 * len(explanation)
    size = (columns * side + 0.8, rows * (side + 0.5))
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[len(norms) :]:
        ax.axis("off")
    for ax, (layer, of) in zip(axes.flat, norms.items(), strict=False):
        ax.imshow(of.double().numpy(), cmap="Greens", vmin=0.0, aspect="auto")
        ax.set_title(f"{stage}, layer {layer}", fontsize="small")
        ax.set_xticks(
            range(len(labels)), labels, rotation=90, fontsize="xx-small", parse_math=False, fontfamily=families
        )
        if of.shape[0] == len(labels):
            ax.set_yticks(range(len(labels)), labels, fontsize="xx-small", parse_math=False, fontfamily=families)
    figure.supxlabel("source", fontsize="small")
    figure.supylabel("position", fontsize="small")
    return figure


def plot_components(explanation: Explanation, ax: Axes | None = None, *, target: Target = None) -> Axes:
    """Stacked bars: how much of a target goes through attention, network and past them in each layer, and its biases.

    Args:
        explanation: of an engine that tells (``engine="adjoint"``, as with ``bias="none"``).
        ax: where to draw; a new figure if None.
        target: as for ``Explanation.column``.

    Raises:
        InputError: if the engine does not tell.
        MissingPackageError: if matplotlib is not installed.
    """
    check_axes(ax)
    totals, column = component_totals(explanation, target), explanation.column(target)
    biases = bias_totals(explanation, target)
    ax = ax or _axes("plot_components()", (6.4, 1.2 + 0.3 * (len(totals) + (-1 in biases))))
    colours = {part: f"C{n}" for n, part in enumerate(PARTS)}
    seen: set[str] = set()
    for height, (layer, of) in enumerate(totals.items()):
        parts = [(part.replace("_", ", "), value, colours[part]) for part, value in of.items()]
        parts.append(("biases", biases.get(layer, 0.0), "0.5"))
        _stack(ax, height, parts, seen)
    names = [f"layer {layer}" for layer in totals]
    if -1 in biases:
        _stack(ax, len(names), [("biases", biases[-1], "0.5")], seen)
        names.append("head")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.axvline(0.0, color="0.5", linewidth=0.8)
    ax.set_xlabel(f"what goes through it, of {printable(explanation.targets[column])}", parse_math=False)
    ax.legend(fontsize="x-small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return ax


def _stack(ax: Any, height: float, parts: Sequence[tuple[str, float, str]], seen: set[str]) -> None:
    """Positive values to the right of 0, negative ones to the left, each beside the last."""
    ends = {True: 0.0, False: 0.0}
    for name, value, colour in parts:
        if value:
            label = None if name in seen else name
            ax.barh(height, value, left=ends[value > 0], color=colour, edgecolor="white", linewidth=0.5, label=label)
            ends[value > 0] += value
            seen.add(name)


def plot_river(
    explanation: Explanation, ax: Axes | None = None, *, target: Target = None, top: int = RIVER_TOKENS
) -> Axes:
    """How what speaks for a target moves from token to token through the layers: a stripe for each token.

    Before the first layer a stripe is as wide as the token's score; at the end all is where the head reads. What speaks
    for the target is above the line, what speaks against it below.

    Args:
        explanation: of an engine that tells, as for :func:`plot_components`.
        ax: where to draw; a new figure if None.
        target: as for ``Explanation.column``.
        top: so many tokens have a stripe of their own, those that carry most anywhere; the others share one.

    Raises:
        InputError: if the engine does not tell, or for ``top`` below 1.
        MissingPackageError: if matplotlib is not installed.
    """
    check_axes(ax)
    if top < 1:
        raise InputError(f"top must be 1 or more, got {top}.")
    column = explanation.column(target)
    names, stripes = river_stripes(explanation, target, top)
    texts, families = drawable(names)
    ax = ax or _axes("plot_river()", (7.2, 4.0))
    assert ax is not None
    steps = range(stripes.shape[1])
    colours = [f"C{n % 10}" for n in range(min(top, len(names)))] + ["0.8"]
    values = stripes.numpy()
    handles = ax.stackplot(steps, values.clip(min=0), colors=colours, labels=texts, linewidth=0.4, edgecolor="white")
    ax.stackplot(steps, values.clip(max=0), colors=colours, linewidth=0.4, edgecolor="white")
    ax.axhline(0.0, color="0.4", linewidth=0.8)
    ax.set_xticks(steps, river_places(len(steps)), rotation=45, ha="right")
    ax.set_ylabel(f"of {printable(explanation.targets[column])}", parse_math=False)
    ax.legend(
        handles,
        texts,
        fontsize="x-small",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        prop={"family": families, "size": 7},
    )
    return ax


def _axes(needed_by: str, size: tuple[float, float]) -> Axes:
    pyplot = import_optional("matplotlib.pyplot", needed_by)
    axes: Axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    return axes
