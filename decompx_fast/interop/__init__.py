"""DecompX as other libraries' users ask for attributions: captum's ``attribute``, an interpreter of LIT.

For plots of shap see :func:`decompx_fast.to_shap`. Nothing here imports those libraries before it is called.
"""
