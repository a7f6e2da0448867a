"""One module per verb: parse, ask the core once, render."""
