"""One call: what is asked of a model, checked, run and composed into results."""
