"""Methods that read the vectors which attention mixes: value-weighted norms, GlobEnc, ALTI, value zeroing."""
