"""``python -m traincast``: the command line."""

from traincast.main import main

if __name__ == "__main__":
    main()
