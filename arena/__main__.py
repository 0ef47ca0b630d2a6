"""``python -m arena``: the command line. Imperative shell."""

from arena.cli.main import main

if __name__ == "__main__":
    main()
