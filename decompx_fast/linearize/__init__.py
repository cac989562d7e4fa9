"""Linearisation: a Hugging Face model and its inputs as a stream of linearised layers.

The only part of the package that imports transformers, and only when a model is linearised: this module and
``linearize.layer`` stay free of it.
"""
