"""The real driver of the core: turns effects into network, training and files, and what happens into events."""
