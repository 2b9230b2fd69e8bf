"""The ``p2ptrain`` command. Heavy imports happen inside commands, so that ``--help`` stays fast."""
