"""The Python interface, a module per verb: the command's names and values in, a Report out."""
