"""Draw the figures of the documentation and make the page of its tutorial: ``python tools/docs_figures.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from decompx_fast import DecompX, plot_components, plot_layers, plot_river

STATIC = Path(__file__).resolve().parent.parent / "docs" / "_static"
TEXT = "The plot is thin, but the two leads are a joy to watch."


def main() -> None:
    """Write all of them into ``docs/_static``."""
    explainer = DecompX.demo()
    page = explainer(TEXT, bias="none", stages=("encoder",), stage_output="norm").to_html("POSITIVE", full=True)
    (STATIC / "page.html").write_text(page, encoding="utf-8")
    told = explainer(TEXT, bias="none")
    figures = {
        "layers": plot_layers(explainer(TEXT, stages=("encoder",), stage_output="norm")),
        "components": plot_components(told, target="POSITIVE").figure,
        "river": plot_river(told, target="POSITIVE", top=6).figure,
        "bars": explainer(TEXT).words().plot(target="POSITIVE").figure,
    }
    for name, figure in figures.items():
        figure.savefig(STATIC / f"{name}.png", dpi=80, metadata={"Software": None})
        pyplot.close(figure)


if __name__ == "__main__":
    main()
