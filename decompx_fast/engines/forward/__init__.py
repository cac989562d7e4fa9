"""The forward engine: the decomposed state carried through all layers, in place (:mod:`.run`)."""
