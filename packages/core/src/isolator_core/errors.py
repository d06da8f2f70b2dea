"""Errors that reach a person as one line, never as a traceback."""


class UserError(Exception):
    """Something the caller of a program can put right. Its text is one sentence that names what is wrong."""

    exit_status = 1


class SettingsError(UserError):
    """A setting that is missing, unknown or out of range. Names the setting, the value and what is accepted."""

    exit_status = 2
