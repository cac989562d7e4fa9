"""How much arithmetic the structure of a text and a model saves the forward engine, and what it could still save.

    PYTHONPATH=. python bench/structure.py      # writes bench/results/structure.md; counts, and runs no model

Operations of the products alone, one multiplication and addition as two, as a plan has them. Every layer alike is what
a model takes whose layers are all computed as one in the middle is: each row of it, from a full state.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from decompx_fast.engines.forward.operations import living_vectors
from decompx_fast.engines.forward.plan import Plan, plan
from decompx_fast.engines.shape import Mask, ModelShape

RESULTS = Path(__file__).resolve().parent / "results" / "structure.md"

SHAPES = {
    "MiniLM, 6 layers": ModelShape(layers=6, d=384, f=1536, heads=12, kv_heads=12, head_size=32),
    "BERT-base": ModelShape(layers=12, d=768, f=3072, heads=12, kv_heads=12, head_size=64),
}
CAUSAL = ModelShape(
    layers=12,
    d=768,
    f=3072,
    heads=12,
    kv_heads=12,
    head_size=64,
    pre_norm=True,
    shares_before=True,
    foldable=False,
    masks=(Mask(causal=True),),
)
LENGTHS = (28, 128, 512)

#: A product of so few columns as there are heads runs at this part of the rate of a large one, roughly.
THIN_RATE = 0.3


def whole_layer(this: Plan) -> dict[str, int]:
    """What a layer in the middle takes, all rows of it from a full state."""
    costs, s = this.costs, this.costs.shape
    rows, mixed = costs.positions * costs.k, s.heads * s.head_size
    return {
        "projections": 2 * rows * s.d * (s.kv_heads * s.head_size + mixed),
        "mixing": 2 * costs.batch * costs.n**2 * costs.k * mixed,
        "position-wise": this.flops["position-wise"] // (s.layers - 1),
    }


def first_hidden(this: Plan) -> tuple[int, int]:
    """What the first layer's product into the hidden layer takes, and what one vector for each head and source would:
    ``N H`` rows of it, weighted for each position and source."""
    costs, s = this.costs, this.costs.shape
    thin = 2 * costs.n * costs.k * s.heads * s.f
    return 2 * costs.n * costs.k * s.d * s.f, 2 * costs.k * s.heads * s.d * s.f + int(thin / THIN_RATE)


def with_zeros(this: Plan) -> Plan:
    """The same where vectors of sources that come after their position are computed like all others."""
    return dataclasses.replace(this, costs=dataclasses.replace(this.costs, on_disk=True))  # where none are left out


def still_zero(this: Plan) -> int:
    """Operations on such vectors that are done after all, in projections and position-wise parts: by blocks, which end
    with the last source of their last row, and the first attention's."""
    n, costs = this.costs.n, this.costs
    projected, living = living_vectors(costs)
    needed = costs.batch * n * (n + 1) // 2
    done = this.flops["first attention"] * (n - 1) // (2 * n)
    done += this.flops["projections"] * (projected - needed) // projected
    return done + this.flops["position-wise"] * (living - needed) // living


def table(name: str, shape: ModelShape) -> list[str]:
    """A model's operations by part: in GFLOP, and as shares of what the engine does."""
    lines = [f"## {name}", "", "| N | path | every layer alike | now | first attention | projections | mixing |"]
    lines[-1] += " position-wise | last row | first hidden layer by heads |"
    lines.append("| --: | --- " + "| --: " * 8 + "|")
    for n in LENGTHS:
        for path in ("direct", "operator"):
            this = plan(shape, n, path=path, device="cpu", available=1 << 40)
            total, alike = this.total_flops, shape.layers * sum(whole_layer(this).values())
            parts = [this.flops[part] / total for part in this.flops]
            now, instead = first_hidden(this)
            saved = f"{(now - instead) / total:.1%}" if path == "direct" else "no such product"
            cells = [f"{alike / 1e9:,.1f}", f"{total / 1e9:,.1f} ({total / alike:.0%})", *map("{:.1%}".format, parts)]
            lines.append(f"| {n} | {path} | {' | '.join(cells)} | {saved} |")
    return [*lines, ""]


def causal_table() -> list[str]:
    lines = [
        "## GPT-2's shape, causal",
        "",
        "With zeros: also the vectors of sources that come after their position. Now: by blocks of rows and sources, "
        "without them but for what a block holds of them.",
        "",
        "| N | with zeros, GFLOP | now | projections | mixing | position-wise | of it on vectors that are zero |",
        "| --: | --: | --: | --: | --: | --: | --: |",
    ]
    for n in LENGTHS:
        this = plan(CAUSAL, n, device="cpu", available=1 << 40)
        before = with_zeros(this)
        cells = [f"{before.total_flops / 1e9:,.1f}"]
        cells.append(f"{this.total_flops / 1e9:,.1f} ({this.total_flops / before.total_flops:.0%})")
        parts = ("projections", "mixing", "position-wise")
        cells += [f"{this.flops[part] / before.flops[part]:.0%}" for part in parts]
        lines.append(f"| {n} | {' | '.join(cells)} | {still_zero(this) / this.total_flops:.1%} |")
    return [*lines, ""]


def main() -> None:
    lines = [
        "# What structure saves",
        "",
        "`bench/structure.py`: operations of the products, counted. Every layer alike: all rows of every layer, from a "
        "full state. Now: what the forward engine does, by part. The last column is what the first layer would save "
        f"net, its products of H columns at {THIN_RATE:.0%} of the rate of large ones.",
        "",
    ]
    for name, shape in SHAPES.items():
        lines += table(name, shape)
    RESULTS.write_text("\n".join([*lines, *causal_table()]).rstrip() + "\n")


if __name__ == "__main__":
    main()
