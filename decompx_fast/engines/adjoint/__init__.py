"""The adjoint engine: directions pulled back through all layers, without the decomposed state (:mod:`.run`)."""
