"""What Slurm says of nodes and jobs, and what is told to it: drain, give back, reasons."""
