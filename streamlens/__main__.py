"""`python -m streamlens` is the `streamlens` command."""

from streamlens.cli import main

if __name__ == "__main__":
    main()
