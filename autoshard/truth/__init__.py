"""Training steps that others measured, beside what a plan of the same step is predicted to take.

    rows      Row: one measured step (model, devices, mesh, plan, batches, what was measured, source); `load(path)`
    tables    the tables of sources as they were published, as rows
    models    the training step of a row as a graph
    mixture   what decoders of experts have in the place of others' layers
    work      the instructions of a step: when each is done, and its seconds
    predict   predicted(row): seconds and bytes, by part
    score     errors by group, rank correlation within tables

`data/` holds the tables; `autoshard truth` prints them beside the predictions.
"""
