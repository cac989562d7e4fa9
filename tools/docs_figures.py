"""Draw the figures of the documentation and make the page of its tutorial: ``python tools/docs_figures.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from decompx_fast import DecompX, plot_components, plot_layers, plot_river
from decompx_fast.result.page import page_chunks

STATIC = Path(__file__).resolve().parent.parent / "docs" / "_static"
TEXT = "The plot is thin, but the two leads are a joy to watch."


def main() -> None:
    """Write all of them into ``docs/_static``."""
    explainer = DecompX.demo()
    staged = explainer(TEXT, stages=("encoder",), stage_output="norm")
    told = explainer(TEXT, bias="none")
    page = page_chunks([("with biases, and layers", staged), ("without biases", told)], title="The same text, twice")
    (STATIC / "page.html").write_text("".join(page), encoding="utf-8")
    figures = {
        "layers": plot_layers(staged),
        "components": plot_components(told, target="POSITIVE").figure,
        "river": plot_river(told, target="POSITIVE", top=6).figure,
        "bars": explainer(TEXT).words().plot(target="POSITIVE").figure,
    }
    for name, figure in figures.items():
        figure.savefig(STATIC / f"{name}.png", dpi=100, metadata={"Software": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
