"""Layer-wise relevance propagation with the rules for attention (AttnLRP)."""
