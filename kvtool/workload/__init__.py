"""What users ask for: documents under Zipf popularity, or the requests of a trace."""
