"""One file a resource of the API."""
