"""Commands that create a cluster on Azure, and CycleCloud's parameters. Pure; nothing is called."""
