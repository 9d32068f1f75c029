"""The MindSpore face: Model, contexts, callbacks, datasets, communication, checkpoints."""
