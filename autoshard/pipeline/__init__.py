"""Training steps cut in time (micro batches) and in space (stages): `schedules` says who does what, and when."""
