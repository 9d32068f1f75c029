"""Plans in stages in the forms that frameworks take; `forms` is the table of them, by name."""
