"""The attribution methods, one module for each family. Importing this package makes them all known.

The order of the imports is that of the tables.
"""

from . import marks, decompx, attention, norms, gradients, relevance, perturbation  # noqa: F401, I001
