"""The REPL: talk to a trained model, or to two side by side.

    session      what a conversation is: voices, settings, transcript; no terminal in it
    commands     the table of commands, and what a typed line means
    settings     the table of settings
    transcript   what was said, saved and loaded
    screen       where it is shown: a pipe, or a terminal
    columns      two texts side by side
    prompt       where it is typed: keys, history, completion
    loops        one line after the other, from a terminal or from a pipe

Whole conversations are tested without a terminal: a session, lines, and a screen that writes
to memory.
"""
