"""What MLflow still lacks, or has too much."""
