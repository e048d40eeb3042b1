"""``python -m ilp_parallel``."""

from ilp_parallel.cli.app import main

if __name__ == "__main__":
    main()
