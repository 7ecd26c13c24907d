"""What can be trained, with the options and metrics of each task."""
