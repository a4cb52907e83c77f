"""Files for Slurm: settings, nodes, GPUs, topology, the scripts that slurmd runs. Pure."""
