"""The error for what a user gave that cannot be, apart from faults of the program itself."""


class InputError(ValueError):
    """One sentence for the person who made the mistake: what was found, and how to correct it.

    The command line prints it and exits with 2. Every other exception, a plain ValueError too, is a
    fault of ours: it is shown with its traceback, and the exit code is 1.
    """
