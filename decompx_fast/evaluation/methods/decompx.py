"""DecompX and its ablations, by this package's own engines."""
