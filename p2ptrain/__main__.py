"""``python -m p2ptrain``: the same as the ``p2ptrain`` command."""

from p2ptrain.cli.main import main

if __name__ == "__main__":
    main()
