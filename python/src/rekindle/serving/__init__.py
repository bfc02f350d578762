"""The program that the image of a function is taken of, and that its instances are."""
