"""The lower and the upper mark that other methods are read against: random scores, and leave-one-out."""
