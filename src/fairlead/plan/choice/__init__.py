"""Which VM size, which network, which storage, and why. Pure, apart from reading the list of SKUs."""
