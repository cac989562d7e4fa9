"""Methods that fit a linear model to the predictions for masked texts: LIME and kernel SHAP."""
