"""The search for stages: where to cut, how many devices each stage has and how they lie, how many micro batches, and
which schedule; each stage planned by a search mode.

    blocks      the forward pass in blocks between which it may be cut; least seconds of each, by micro batches
    space       choices, and what a step of each takes at least
    layer_prices, layered_step, layered     of models of many equal layers: what one takes, steps, the search
    search      best first, each priced as the pipeline that it is, until no other can be faster; or so many
"""
