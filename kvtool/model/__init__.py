"""What a model is: `spec`, and the readers that make one from published configurations."""
