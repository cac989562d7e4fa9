"""The engines: each turns a linearised model into contributions, and all give the same numbers.

Import an engine from its own module, so that only the one in use is loaded.
"""
