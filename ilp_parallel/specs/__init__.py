"""What is trained, on what, and how: model, cluster and job, with their readers."""
