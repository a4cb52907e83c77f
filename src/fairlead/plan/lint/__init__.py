"""Known traps in manifests, Helm values and scripts of others. Nothing is applied and nothing is run."""
