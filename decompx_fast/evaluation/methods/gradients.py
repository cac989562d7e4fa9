"""Methods that differentiate the logit with respect to the embeddings: saliency, gradient x input, integrated gradients."""
