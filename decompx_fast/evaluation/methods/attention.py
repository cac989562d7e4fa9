"""Methods that read the attention weights alone: raw, effective, rollout and flow."""
