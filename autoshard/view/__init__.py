"""A plan as one page that needs nothing from the net: `page(...)`, and `View`, which notebooks show and files keep."""
