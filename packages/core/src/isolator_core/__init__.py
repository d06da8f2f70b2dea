"""What more than one service of kai-resource-isolator needs, and nothing else."""
