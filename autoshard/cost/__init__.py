"""What plans and programs cost: seconds, bytes and memory of a step, for all searches, passes and reports."""
