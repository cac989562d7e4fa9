"""Draw the figures of the documentation: ``python tools/docs_figures.py``.

The page that its tutorial shows is made here too, by each build of the documentation anew.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from decompx_fast import DecompX, Explanation, plot_components, plot_layers, plot_river
from decompx_fast.result.page import page_chunks

STATIC = Path(__file__).resolve().parent.parent / "docs" / "_static"
TEXT = "The plot is thin, but the two leads are a joy to watch."


def write_page(path: Path) -> None:
    """The page that the tutorial shows: two explanations of one text."""
    explainer = DecompX.demo()
    staged, told = explained(explainer)
    page = page_chunks([("with biases, and layers", staged), ("without biases", told)], title="The same text, twice")
    path.write_text("".join(page), encoding="utf-8")


def explained(explainer: DecompX) -> tuple[Explanation, Explanation]:
    """With layers, and without biases."""
    return explainer(TEXT, stages=("encoder",), stage_output="norm"), explainer(TEXT, bias="none")


def main() -> None:
    """Draw the figures into ``docs/_static``."""
    explainer = DecompX.demo()
    staged, told = explained(explainer)
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
