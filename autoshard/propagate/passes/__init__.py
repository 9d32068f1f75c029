"""The passes around propagation, each a function that edits a module in place; `pipeline` strings them together.

They are those of Shardy's import and export pipelines, under names that say what they do; each docstring tells which
one it is. What they leave behind is the same to the last operation: order, shardings, names of functions.
"""
