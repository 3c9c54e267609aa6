"""Pictures of the page of results, one module for each kind."""
