"""Linearisation: a Hugging Face model and its inputs as a stream of linearised layers.

Reads models without importing transformers; what engines need of it is :mod:`.layer` alone.
"""
