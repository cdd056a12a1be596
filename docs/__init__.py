"""The pages of the manual; :mod:`docs.generate` writes the parts that follow from the code."""
