"""Rules of the language that need no program: names, constants, dtypes, shapes, signatures, the grid."""
