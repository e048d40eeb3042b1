"""Model, cluster, job and configuration turned into seconds and bytes."""
