"""How the documentation is built: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

from decompx_fast import __version__

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

import docs_figures  # noqa: E402  (of the tools)

docs_figures.write_page(HERE / "_static" / "page.html")

project = "decompx_fast"
author = "the developers of decompx_fast"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"decompx_fast {version}"
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_theme_options = {"top_of_page_buttons": []}

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp"
