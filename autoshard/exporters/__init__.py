"""What is written for people and other programs to read; each form a file of its own."""
