"""``python -m ilp_parallel``."""

from ilp_parallel.cli import main

if __name__ == "__main__":
    main()
