"""The other driver of the core: virtual time, network, faults and churn by seed; no sockets, no torch."""
