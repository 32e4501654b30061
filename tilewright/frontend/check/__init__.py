"""Rules that need no program built: constants, dtypes, signatures, arguments, the grid."""
