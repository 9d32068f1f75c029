"""Training steps cut in time and in space: `schedules` says who does what and when, `stages` what there is to do."""
