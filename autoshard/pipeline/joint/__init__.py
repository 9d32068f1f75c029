"""The search for stages: where to cut, how many devices each stage has and how they lie, how many micro batches, and
which schedule; each stage planned by a search mode.

    blocks      the forward pass in blocks between which it may be cut; least seconds of each, by micro batches
    space       choices, what a step of each takes at least, and what is expected of it
    guided      the order in which choices are priced
    layer_prices, layered_step, layered     of models of many equal layers: what one takes, steps, the search
    search      each priced as the pipeline that it is, until no other can be faster; or so many
"""
