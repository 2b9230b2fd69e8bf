"""What a person sees of a running peer: journal, round log, metrics. Watches, and decides nothing."""
