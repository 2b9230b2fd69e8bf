"""Real peer processes on one machine: for tests, benches, the demo, and (with an emulated WAN) for anybody's storms."""
