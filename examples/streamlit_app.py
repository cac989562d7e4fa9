"""A page where a text can be typed and its explanation seen, by Streamlit: `pip install streamlit`, then
`streamlit run examples/streamlit_app.py`."""

from __future__ import annotations

import streamlit

from decompx_fast import DecompX


@streamlit.cache_resource
def explainer() -> DecompX:
    """The embedded sentiment model, loaded once for all visitors; put your own in its place."""
    return DecompX.demo()


def main() -> None:
    """The page, which Streamlit runs anew whenever something is typed or chosen."""
    streamlit.set_page_config("decompx_fast")
    text = streamlit.text_input("Text", "The plot is thin, but the two leads are a joy to watch.")
    if not text.strip():
        streamlit.info("Type a text.")
        return
    explanation = explainer()(text)
    target = streamlit.selectbox("Class", explanation.targets, index=explanation.column())
    streamlit.html(explanation.to_html(target))  # escaped, and without scripts
    words = explanation.words()
    shares = {"word": words.tokens, "score": words.scores[:, words.column(target)].tolist()}
    streamlit.dataframe(shares, hide_index=True)


if __name__ == "__main__":
    main()
