"""Text for people: reports of plans and propagations, explanations, comparisons."""
