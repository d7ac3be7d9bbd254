"""The YAML files that ship. ``mm-numeric ls`` lists them, ``mm-numeric cp`` makes one yours."""
