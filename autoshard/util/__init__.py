"""What every room needs: errors, checks of arguments, source locations."""
