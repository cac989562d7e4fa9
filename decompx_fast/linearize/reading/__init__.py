"""What the files of families are written with: parts by their paths, positions, heads, and the stacks that many share.

Nothing here knows an architecture by name; what several share and no other has stands here too.
"""
