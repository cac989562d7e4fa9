"""How faithful attributions are: the methods of the field under one signature, and the metrics that compare them."""
