"""Tables of scripts' ways: `cases()`."""


def cases(text):
    """Return ways by name: what an error says of each, what stands before the class, in it, in setup() and in map()."""
    found, name, part = {}, "", ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            part = line[:10].strip(" :") or part
            found[name][part].append(line[10:])
        else:
            name, _, named = line.partition(": ")
            found[name] = {"named": named, "before": [], "class": [], "setup": [], "map": []}
    return found
