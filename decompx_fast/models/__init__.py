"""Loading models: those that ``save_pretrained`` wrote, and the embedded one. Nothing else imports transformers."""
